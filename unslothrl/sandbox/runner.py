"""Runs a program at a level, or two that are connected, watches it, and removes what is left."""

import contextlib
import functools
import inspect
import json
import marshal
import math
import os
import selectors
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from unslothrl.sandbox import levels, link, remote, view
from unslothrl.sandbox.levels import START_S, Limits, Program, ProgramResult

BOOT = """
import sys, types
module = sys.modules[{name!r}] = types.ModuleType({name!r})
exec(compile({link!r}, "link.py", "exec"), module.__dict__)
exec(compile({remote!r}, "remote.py", "exec"), globals())
"""
ERROR_TAIL = 2000  # bytes of stderr that are kept
CHUNK = 1 << 16
CHECK_EVERY_S, TICK_S = 0.05, 0.002


def run(program: Program, limits: Limits, level: str) -> ProgramResult:
    """The result, `limits.wall_s` after the program has begun and a little later at most.

    OSError where the level does not work here; TimeoutError, which is one, where the machine cannot
    start a sandbox in time. To be called in a process with a single thread: it forks.
    """
    with contextlib.ExitStack() as stack:
        return watch(start(stack, program, limits, level), limits)


@dataclass
class StartedProgram:
    """A program's process, before it is known whether it has begun."""

    process: subprocess.Popen
    report: socket.socket  # "+" once it has begun, then a function's result
    count_files: Callable[[], int] | None  # in its folder, where that has no limit

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def start(
    stack: contextlib.ExitStack,
    program: Program,
    limits: Limits,
    level: str,
    *,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    inherited: tuple[int, ...] = (),
) -> StartedProgram:
    """Starts a program, which inherits the descriptors `inherited`; `stack` closes the rest."""
    how = levels.start(stack, level, limits)
    stdin = view.memory_fd(stack, program.stdin.encode(errors="surrogatepass"))
    request = view.memory_fd(stack, request_of(program, limits, how.uid))
    folder = stack.enter_context(temporary_folder()) if level == "none" else None
    ours, theirs = map(stack.enter_context, socket.socketpair())
    process = subprocess.Popen(
        [*how.command, view.interpreter(), "-I", "-S", "-B", "-X", "utf8",
         how.harness, str(request), str(theirs.fileno())],
        stdin=stdin, stdout=stdout, stderr=stderr, bufsize=0,
        pass_fds=(request, theirs.fileno(), *how.inherited, *inherited),
        preexec_fn=how.prepare, env=view.ENVIRONMENT, cwd=folder, start_new_session=True,
    )  # fmt: skip
    theirs.close()
    return StartedProgram(process, ours, how.count_files)


def request_of(program: Program, limits: Limits, uid: int | None) -> bytes:
    numbers = {
        "RLIMIT_CPU": math.ceil(limits.cpu_s),
        "RLIMIT_AS": limits.memory_mb << 20,
        "RLIMIT_FSIZE": limits.file_mb << 20,
        "RLIMIT_NPROC": limits.threads,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_SIGPENDING": 256,  # timers too
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_CORE": 1,  # 0 would still start a program that takes dumps through a pipe
    }
    request = {
        "text": program.text,
        "function": program.function,
        "arguments": program.arguments,
        "uid": uid,
        "limits": numbers,
        "packages": view.packages(),
    }
    return marshal.dumps(request)


def watch(started: StartedProgram, limits: Limits) -> ProgramResult:
    """Reads until it ends or breaks a limit, then ends all its processes. OSError: not begun."""
    process, report = started.process, started.report.fileno()
    assert process.stdout is not None and process.stderr is not None
    out, error = process.stdout.fileno(), process.stderr.fileno()
    held = {out: bytearray(), error: bytearray(), report: bytearray()}
    began = time.monotonic()
    ends = began + START_S
    stopped, has_begun = None, False
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        for fd in held:
            selector.register(fd, selectors.EVENT_READ)
        while stopped is None and process.returncode is None:
            pause_s = min(CHECK_EVERY_S, max(0.0, ends - time.monotonic()))
            if not selector.get_map():  # it has closed its pipes, as at its end
                if process.poll() is not None:
                    break
                time.sleep(TICK_S)
                pause_s = 0.0
            for key, _ in selector.select(pause_s):
                data = os.read(key.fd, CHUNK)
                held[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
            if held[report] and not has_begun:
                has_begun, began = True, time.monotonic()
                ends = began + limits.wall_s
            del held[error][:-ERROR_TAIL]
            written = max(len(held[out]), len(held[report]))
            stopped = broken_limit(started, limits, written, ends, has_begun)
    if stopped is None:
        stopped = how_it_ended(process.wait())
    else:
        started.kill()
    seconds = time.monotonic() - began
    stderr = held[error].decode(errors="replace")
    if not has_begun:
        if time.monotonic() >= ends:
            raise TimeoutError(f"it did not start within {START_S:g} s")
        raise OSError(f"{stopped or 'the program was not begun'}: {stderr.strip()[-300:]}")
    value, has_result = read_result(bytes(held[report][1:]))
    return ProgramResult(
        held[out].decode(errors="replace"), stderr, value, has_result, stopped, seconds
    )


def broken_limit(
    started: StartedProgram, limits: Limits, written: int, ends: float, has_begun: bool
) -> str | None:
    """Which limit a program has broken, of those that are watched from outside. Before it has begun
    its folder may still be the machine's own."""
    if written > limits.output_kb << 10:
        return f"wrote more than {limits.output_kb} KB"
    if time.monotonic() >= ends:
        return f"took longer than {limits.wall_s:g} s"
    has_count = has_begun and started.count_files is not None
    if has_count and started.count_files() > limits.files:  # type: ignore[misc]
        return f"made more than {limits.files} files"
    return None


def how_it_ended(code: int) -> str | None:
    """None for a good end."""
    if code == 0:
        return None
    number = -code if code < 0 else code - 128
    return f"signal {number}" if 0 < number <= 64 else f"exit {code}"


def read_result(reply: bytes) -> tuple[object, bool]:
    try:
        return json.loads(reply), True
    except (ValueError, RecursionError):  # also of an integer of over 4,300 digits
        return None, False


@functools.cache
def boot() -> str:
    """A program with `remote`'s `serve` and `verdict`. OSError: a module cannot be read."""
    return BOOT.format(
        name=link.__name__, link=inspect.getsource(link), remote=inspect.getsource(remote)
    )


def run_tests(text: str, tests: dict[str, Any], limits: Limits, level: str) -> ProgramResult:
    """Runs tests of a program in another sandbox, see `remote.verdict`. `result` is True where all
    of them hold; `has_result` and `stopped` are the tests', whose process alone reports. The
    program ends with the tests. OSError as in `run`."""
    with contextlib.ExitStack() as stack:
        of_program, of_tests = map(stack.enter_context, socket.socketpair())
        given = (of_program.fileno(), text, tests["prelude"], tests["entry_point"])
        program = Program(boot(), function="serve", arguments=given)
        served = start_connected(stack, program, limits, level, of_program)
        asking = Program(boot(), function="verdict", arguments=(of_tests.fileno(), tests))
        asked = start(stack, asking, limits, level, inherited=(of_tests.fileno(),))
        stack.callback(asked.kill)
        of_program.close()  # so that each side sees the other's end
        of_tests.close()
        wait_for_begin(*served)
        counts = [each.count_files for each in (asked, served[0]) if each.count_files is not None]
        if counts:
            asked.count_files = lambda: max(count() for count in counts)
        return watch(asked, limits)


def start_connected(
    stack: contextlib.ExitStack,
    program: Program,
    limits: Limits,
    level: str,
    connection: socket.socket,
) -> tuple[StartedProgram, int]:
    """Starts a program that talks over a socket and prints nothing. -> (it, its stderr)."""
    errors = view.memory_fd(stack, b"")
    started = start(
        stack, program, limits, level,
        stdout=subprocess.DEVNULL, stderr=errors, inherited=(connection.fileno(),),
    )  # fmt: skip
    stack.callback(started.kill)
    return started, errors


def wait_for_begin(started: StartedProgram, errors: int) -> None:
    """Returns when the program has begun. OSError where it has not; `errors` is its stderr."""
    with selectors.DefaultSelector() as selector:
        selector.register(started.report, selectors.EVENT_READ)
        if not selector.select(START_S):
            raise TimeoutError(f"it did not start within {START_S:g} s")
    if not started.report.recv(1):
        started.process.wait()
        text = os.pread(errors, ERROR_TAIL, 0).decode(errors="replace")
        raise OSError(f"the program was not begun: {text.strip()[-300:]}")


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A new folder; whatever the program has put in its place, only what is in it is deleted."""
    path = tempfile.mkdtemp(prefix="unslothrl-program-")
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield path
    finally:
        os.fchmod(folder, stat.S_IRWXU)
        within = f"/proc/self/fd/{folder}"
        delete = ["find", ".", "-mindepth", "1", "-delete"]
        if subprocess.run(delete, cwd=within, stderr=subprocess.DEVNULL).returncode:
            # Modes are changed of folders alone: a file may have other names.
            closed = ["find", ".", "-type", "d", "!", "-perm", "-700"]
            chmod = [*closed, "-exec", "chmod", "u+rwx", "{}", ";"]
            subprocess.run(chmod, cwd=within, stderr=subprocess.DEVNULL)
            subprocess.run(delete, cwd=within, stderr=subprocess.DEVNULL)
        for remove in (os.rmdir, os.unlink):
            with contextlib.suppress(OSError):  # the last is for a link, and fails for a folder
                remove(path)
        os.close(folder)

"""Runs one program at a level, watches it, and takes away what is left of it."""

import contextlib
import json
import marshal
import math
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import BinaryIO

from unslothrl.sandbox import levels, view
from unslothrl.sandbox.program import Limits, Outcome, Program

ERROR_TAIL = 2000  # bytes of stderr that are kept
CHUNK = 1 << 16


def run(program: Program, limits: Limits, level: str | None = None) -> Outcome:
    """The outcome, `limits.wall_s` and a little later at most.

    `level` is the best one here where not given. OSError where it cannot be had. To be called in a
    process of one thread: it forks.
    """
    level = level or levels.choose()
    start = levels.start(level, limits)
    with contextlib.ExitStack() as stack:
        for fd in start.inherited:
            stack.callback(os.close, fd)
        files = [
            stack.enter_context(memory_file(content))
            for content in (
                program.stdin.encode(errors="surrogatepass"),
                request_of(program, limits, start.uid),
            )
        ]
        stdin, request = (file.fileno() for file in files)
        folder = stack.enter_context(own_folder()) if level == "none" else None
        begun, result = (stack.enter_context(Pipe()) for _ in range(2))
        began = time.monotonic()
        process = subprocess.Popen(
            [*start.command, view.interpreter(), "-I", "-S", "-B", "-X", "utf8",
             start.harness, str(request), str(begun.end), str(result.end)],
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            pass_fds=(request, begun.end, result.end, *start.inherited),
            preexec_fn=start.prepare, env=view.ENVIRONMENT, cwd=folder, start_new_session=True,
        )  # fmt: skip
        begun.close_end()
        result.close_end()
        return watch(process, begun.start, result.start, limits, began)


class Pipe:
    """A pipe that is read here; its other end is the program's."""

    def __init__(self) -> None:
        self.start, self.end = os.pipe()

    def __enter__(self) -> "Pipe":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.start)
        self.close_end()

    def close_end(self) -> None:
        if self.end >= 0:
            os.close(self.end)
            self.end = -1


def request_of(program: Program, limits: Limits, uid: int | None) -> bytes:
    seconds = math.ceil(limits.cpu_s)
    memory, file = limits.memory_mb << 20, limits.file_mb << 20
    numbers = {
        "RLIMIT_CPU": seconds,
        "RLIMIT_AS": memory,
        "RLIMIT_FSIZE": file,
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


def memory_file(content: bytes) -> BinaryIO:
    """A file to read `content` from: on no disk, and no pipe that could fill."""
    file = os.fdopen(os.memfd_create("sandbox", os.MFD_CLOEXEC), "w+b", buffering=0)
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
    file.seek(0)
    return file


@contextlib.contextmanager
def own_folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="unslothrl-program-")
    try:
        yield folder
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", folder], stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL)  # however deep it is


def watch(
    process: subprocess.Popen, begun: int, reply: int, limits: Limits, began: float
) -> Outcome:
    """Reads until the program ends or breaks a limit, then ends all that it was."""
    assert process.stdout is not None and process.stderr is not None
    out, error = process.stdout.fileno(), process.stderr.fileno()
    held = {out: bytearray(), error: bytearray(), reply: bytearray(), begun: bytearray()}
    ends, most = began + limits.wall_s, limits.output_kb << 10
    stopped = None
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        for fd in held:
            selector.register(fd, selectors.EVENT_READ)
        while stopped is None and selector.get_map():
            for key, _ in selector.select(max(0.0, ends - time.monotonic())):
                data = os.read(key.fd, CHUNK)
                held[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
            del held[error][:-ERROR_TAIL]
            if max(len(held[out]), len(held[reply])) > most:
                stopped = f"wrote more than {limits.output_kb} KB"
            elif time.monotonic() >= ends:
                stopped = f"took longer than {limits.wall_s:g} s"
        stopped = finish(process, stopped, ends, limits)
    seconds = time.monotonic() - began
    stderr = held[error].decode(errors="replace")
    if not held[begun]:
        raise OSError(f"{stopped or 'the program was not begun'}: {stderr.strip()[-300:]}")
    value, has_result = read_result(bytes(held[reply]))
    return Outcome(held[out].decode(errors="replace"), stderr, value, has_result, stopped, seconds)


def finish(
    process: subprocess.Popen, stopped: str | None, ends: float, limits: Limits
) -> str | None:
    """Waits for a program that holds none of its pipes any more, or kills it. -> why it ended."""
    if stopped is None:
        try:
            return how_it_ended(process.wait(max(0.0, ends - time.monotonic())))
        except subprocess.TimeoutExpired:
            stopped = f"took longer than {limits.wall_s:g} s"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return stopped


def how_it_ended(code: int) -> str | None:
    """None for a good end."""
    if code == 0:
        return None
    number = -code if code < 0 else code - 128
    return f"signal {number}" if 0 < number <= 64 else f"exit {code}"


def read_result(reply: bytes) -> tuple[object, bool]:
    try:
        return json.loads(reply), True
    except (ValueError, RecursionError):
        return None, False

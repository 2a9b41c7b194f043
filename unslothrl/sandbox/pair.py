"""Runs a program and the tests of it in a sandbox each, connected by two sockets: see `remote`.

The tests' process alone reports, by a pipe that the program does not have. Both are bounded by the
same limits, and the program ends with the tests.
"""

import contextlib
import functools
import selectors
import socket
import subprocess
from typing import Any, BinaryIO

from unslothrl.sandbox import link, remote
from unslothrl.sandbox.program import START_S, Limits, Overloaded, Program, ProgramResult
from unslothrl.sandbox.runner import (
    ERROR_TAIL,
    StartedProgram,
    memory_file,
    start,
    started_in_time,
    watch,
)

BOOT = """
import sys, types
module = sys.modules[{name!r}] = types.ModuleType({name!r})
exec(compile({link!r}, "link.py", "exec"), module.__dict__)
exec(compile({remote!r}, "remote.py", "exec"), globals())
"""


@functools.cache
def boot() -> str:
    """A program with `remote`'s functions `serve` and `verdict`. OSError where a module's file
    cannot be read."""
    return BOOT.format(name=link.__name__, link=source_of(link), remote=source_of(remote))


def source_of(module: Any) -> str:
    with open(module.__file__, encoding="utf-8") as file:
        return file.read()


def run_tests(text: str, tests: dict[str, Any], limits: Limits, level: str) -> ProgramResult:
    """Runs tests (see `remote.verdict`) of a program. `result` is True where all of them hold;
    `has_result` and `stopped` are the tests'. OSError as in `runner.run`."""
    return started_in_time(lambda: run_once(text, tests, limits, level))


def run_once(text: str, tests: dict[str, Any], limits: Limits, level: str) -> ProgramResult:
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
) -> tuple[StartedProgram, BinaryIO]:
    """Starts a program that talks over a socket and prints nothing. -> (it, its stderr)."""
    errors = stack.enter_context(memory_file(b""))
    started = start(
        stack, program, limits, level,
        stdout=subprocess.DEVNULL, stderr=errors.fileno(), inherited=(connection.fileno(),),
    )  # fmt: skip
    stack.callback(started.kill)
    return started, errors


def wait_for_begin(started: StartedProgram, errors: BinaryIO) -> None:
    """Returns when the program has begun. OSError where it has not; `errors` is its stderr."""
    with selectors.DefaultSelector() as selector:
        selector.register(started.report, selectors.EVENT_READ)
        if not selector.select(START_S):
            raise Overloaded(f"it did not start within {START_S:g} s")
    if not started.report.recv(1):
        started.process.wait()
        errors.seek(0)
        text = errors.read(ERROR_TAIL).decode(errors="replace")
        raise OSError(f"the program was not begun: {text.strip()[-300:]}")

"""Runs a program and the tests of it in a sandbox each, connected by two pipes: see `remote`.

The tests' process alone reports, by a pipe that the program does not have. Both are bounded by the
same limits, and the program ends with the tests.
"""

import contextlib
import functools
import os
import selectors
import subprocess
from typing import Any, BinaryIO

from unslothrl.sandbox import link, remote, values
from unslothrl.sandbox.program import START_S, Limits, Overloaded, Program, ProgramResult
from unslothrl.sandbox.runner import (
    ERROR_TAIL,
    Started,
    memory_file,
    start,
    started_in_time,
    watch,
)

INSIDE = (values, link, remote)  # modules that run in there, each after those that it imports
BOOT = """
import sys, types
for name, text in {sources!r}:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
from {remote} import serve, verdict
"""


@functools.cache
def boot() -> str:
    """A program that makes the modules of `INSIDE` and has their functions `serve` and `verdict`.
    OSError where a module's file cannot be read."""
    sources = [(each.__name__, source_of(each)) for each in INSIDE]
    return BOOT.format(sources=sources, remote=remote.__name__)


def source_of(module: Any) -> str:
    with open(module.__file__, encoding="utf-8") as file:
        return file.read()


def run_tests(text: str, tests: dict[str, Any], limits: Limits, level: str) -> ProgramResult:
    """Runs tests (see `remote.verdict`) of a program. `result` is True where all of them hold;
    `has_result` and `stopped` are the tests'. OSError as in `runner.run`."""
    return started_in_time(lambda: run_once(text, tests, limits, level))


def run_once(text: str, tests: dict[str, Any], limits: Limits, level: str) -> ProgramResult:
    with contextlib.ExitStack() as stack:
        pipes = Pipes()
        stack.callback(pipes.close)
        of_program, of_tests = (pipes.fds[0], pipes.fds[3]), (pipes.fds[2], pipes.fds[1])
        given = (*of_program, text, tests["prelude"], tests["entry_point"])
        program = Program(boot(), function="serve", arguments=given)
        errors = stack.enter_context(memory_file(b""))
        served = start(
            stack,
            program,
            limits,
            level,
            stdout=subprocess.DEVNULL,
            stderr=errors.fileno(),
            inherited=of_program,
        )
        stack.callback(served.kill)
        asking = Program(boot(), function="verdict", arguments=(*of_tests, tests))
        asked = start(stack, asking, limits, level, inherited=of_tests)
        stack.callback(asked.kill)
        pipes.close()  # so that each side sees the other's end
        wait_for_begin(served, errors)
        counts = [each.files.count for each in (asked, served) if each.files.count is not None]
        if counts:
            asked.files.count = lambda: max(count() for count in counts)
        return watch(asked, limits)


class Pipes:
    """Two pipes, to be inherited: (reading end, writing end) of each."""

    def __init__(self) -> None:
        self.fds = [*os.pipe(), *os.pipe()]

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


def wait_for_begin(started: Started, errors: BinaryIO) -> None:
    """Returns when the program has begun. OSError where it has not; `errors` is its stderr."""
    with selectors.DefaultSelector() as selector:
        selector.register(started.begun, selectors.EVENT_READ)
        if not selector.select(START_S):
            raise Overloaded(f"it did not start within {START_S:g} s")
    if not os.read(started.begun, 1):
        started.process.wait()
        errors.seek(0)
        text = errors.read(ERROR_TAIL).decode(errors="replace")
        raise OSError(f"the program was not begun: {text.strip()[-300:]}")

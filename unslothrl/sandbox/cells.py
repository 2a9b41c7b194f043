"""A Python in a sandbox that keeps its state from one cell to the next.

    with Interpreter(level=choose()) as python:
        python.run("x = 20")          Cell("")
        python.run("print(x)\\nx + 1")  Cell("20\\n21\\n")

A cell that takes too long ends the interpreter; the next one begins a new one, without its state.
"""

import contextlib
import json
import os
import select
import struct
import subprocess
import time
from dataclasses import dataclass, replace

from unslothrl.sandbox import cell_server
from unslothrl.sandbox.pair import Pipes, source_of, wait_for_begin
from unslothrl.sandbox.program import Limits, Program
from unslothrl.sandbox.runner import Started, memory_file, start, started_in_time

CPU_S = 600.0  # of all cells together


@dataclass(frozen=True)
class Cell:
    """What a cell printed, and the value of its last line if that is an expression."""

    text: str
    failed: bool = False  # it raised, which the text says; or the interpreter ended


class Interpreter:
    """Starts with its first cell. `limits` are those of a program, but for the time: `wall_s` is a
    cell's, and all cells together have `CPU_S`."""

    def __init__(self, level: str, limits: Limits | None = None, most: int = 8_000):
        """`most`: characters of a cell's output, of which the middle is left out."""
        limits = limits or Limits()
        self.level, self.wall_s, self.most = level, limits.wall_s, most
        self.limits = replace(limits, cpu_s=CPU_S)
        self.stack = contextlib.ExitStack()
        self.started: Started | None = None
        self.read_fd = self.write_fd = -1

    def __enter__(self) -> "Interpreter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, code: str) -> Cell:
        """OSError where the level does not work here; Overloaded as from `runner.run`."""
        if self.started is None:
            started_in_time(self._start)
        data = code.encode("utf-8", "replace")
        try:
            os.write(self.write_fd, cell_server.HEADER.pack(len(data)) + data)
            (length,) = cell_server.HEADER.unpack(
                self._receive(cell_server.HEADER.size, time.monotonic() + self.wall_s)
            )
            text, failed = json.loads(self._receive(length, time.monotonic() + self.wall_s))
        except TimeoutError:
            self.close()
            return Cell(f"took longer than {self.wall_s:g} s: Python was started again", True)
        except (EOFError, BrokenPipeError, ValueError, struct.error):
            self.close()
            return Cell("Python ended (too much memory, or it ended itself): started again", True)
        return Cell(str(text), bool(failed))

    def _start(self) -> None:
        self.close()
        with contextlib.ExitStack() as stack:
            pipes = Pipes()
            stack.callback(pipes.close)
            theirs = (pipes.fds[0], pipes.fds[3])
            program = Program(
                source_of(cell_server), function="serve", arguments=(*theirs, self.most)
            )
            errors = stack.enter_context(memory_file(b""))
            started = start(
                stack,
                program,
                self.limits,
                self.level,
                stdout=subprocess.DEVNULL,
                stderr=errors.fileno(),
                inherited=theirs,
            )
            stack.callback(started.kill)
            wait_for_begin(started, errors)
            self.read_fd, self.write_fd = os.dup(pipes.fds[2]), os.dup(pipes.fds[1])
            stack.callback(os.close, self.read_fd)
            stack.callback(os.close, self.write_fd)
            pipes.close()  # so that its end is seen here
            self.started, self.stack = started, stack.pop_all()

    def _receive(self, length: int, end: float) -> bytes:
        data = b""
        while len(data) < length:
            ready, _, _ = select.select([self.read_fd], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError
            more = os.read(self.read_fd, length - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def close(self) -> None:
        self.started = None
        self.stack.close()
        self.stack = contextlib.ExitStack()

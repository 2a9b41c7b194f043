"""A Python in a sandbox that keeps its state from one cell to the next.

    with closing(Interpreter(level=choose())) as python:
        python.run("x = 20")          "", False
        python.run("print(x)\\nx + 1")  "20\\n21\\n", False

A cell that takes too long ends the interpreter; the next one begins a new one, without its state.
"""

import contextlib
import inspect
import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from unslothrl.sandbox import cell_server
from unslothrl.sandbox.levels import Limits, Program
from unslothrl.sandbox.runner import CHECK_EVERY_S, start_connected, wait_for_begin

CPU_S = 600.0  # of all cells together
MOST_ANSWER = 1 << 20  # bytes


class Interpreter:
    """Starts with its first cell. `limits` are those of a program, but for the time: `wall_s` is a
    cell's, and all cells together have `CPU_S`."""

    def __init__(self, level: str, limits: Limits | None = None, most: int = 8_000):
        """`most`: characters of a cell's output, of which the middle is left out."""
        limits = limits or Limits()
        self.level, self.wall_s, self.most = level, limits.wall_s, most
        self.limits = replace(limits, cpu_s=CPU_S)
        self.stack = contextlib.ExitStack()
        self.connection: socket.socket | None = None
        self.count_files: Callable[[], int] | None = None  # see `StartedProgram`

    def run(self, code: str) -> tuple[str, bool]:
        """-> (what a cell printed, and the value of its last line if that is an expression; whether
        it raised, which the text says, or ended the interpreter). OSError as from `runner.run`."""
        connection = self.connection or self._start()
        try:
            connection.settimeout(self.wall_s)
            end = time.monotonic() + self.wall_s
            connection.sendall(json.dumps(code).encode() + b"\n")
            text, failed = json.loads(self._answer(connection, end))
        except (OSError, TypeError, ValueError, RecursionError) as error:
            self.close()
            if isinstance(error, TimeoutError):
                return f"took longer than {self.wall_s:g} s: Python was started again", True
            why = "too much memory or too many files, or it ended itself"
            return f"Python ended ({why}): started again", True
        return str(text), bool(failed)

    def _start(self) -> socket.socket:
        with contextlib.ExitStack() as stack:
            ours, theirs = map(stack.enter_context, socket.socketpair())
            arguments = (theirs.fileno(), self.most)
            program = Program(inspect.getsource(cell_server), function="serve", arguments=arguments)
            started, errors = start_connected(stack, program, self.limits, self.level, theirs)
            wait_for_begin(started, errors)
            theirs.close()  # so that its end is seen here
            self.count_files = started.count_files
            self.connection, self.stack = ours, stack.pop_all()
        return ours

    def _answer(self, connection: socket.socket, end: float) -> bytes:
        """Not a whole one where Python has ended, writes without end or makes too many files."""
        data = b""
        while not data.endswith(b"\n") and len(data) < MOST_ANSWER:
            if (left := end - time.monotonic()) <= 0:
                raise TimeoutError
            if self.count_files is not None and self.count_files() > self.limits.files:
                break
            connection.settimeout(min(left, CHECK_EVERY_S))
            with contextlib.suppress(TimeoutError):
                if not (more := connection.recv(1 << 16)):
                    break
                data += more
        return data

    def close(self) -> None:
        self.connection = None
        self.stack.close()

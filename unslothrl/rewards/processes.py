"""Processes for calls that may never end: each call has a deadline, and what misses it is killed.

    with ProcessPool(2) as pool:
        pool.call([RewardCall("answercheck:same", ("1/2", "0.5"))])   -> [Result(True)]

A process keeps what it has imported. Its memory is limited unless `memory_mb` is None, so that a
runaway computation fails instead of filling the machine.

Every reply is sealed with the token of its call, see `functions.sealed`. A process that ends, or
that writes anything else to its socket, is replaced, and no call pays for what another has done to
its process: see `Round.lose`.
"""

import collections
import contextlib
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from unslothrl.rewards.functions import IMPORTED, opened
from unslothrl.text import dumps_long

DEADLINE_S = 5.0
START_S = 60.0  # for a process to start and to import a function's module
LOADING_FACTOR = 12.0  # deadlines that a function gets which has not answered yet and may load
MOST_SILENT = 4  # late calls of a function that has never answered, before the rest fails uncalled
MEMORY_MB = 2048
MAX_QUEUED = 32  # calls that a process may hold, where calls are short
CHUNK = 1 << 16  # bytes that are sent or read at once
MOST_REPLIED = 64 << 20  # bytes of a line that is still taken for a reply
TOO_LONG = "took longer than "
ENDED = "ended its process"
STRAY = "wrote to the descriptor that its process replies on"


class Closed(Exception):
    """The pool was closed during a call."""


@dataclass(frozen=True)
class RewardCall:
    """A function, "module:function" or "file.py:function", and its arguments: JSON values.

    `group`: once a call of a group has returned False, the rest of the group is skipped.
    `deadline_s`: None: that of the pool. `may_load`: its first call in a process may load a model,
    which takes longer: see `ProcessPool.allowed_s`.
    """

    function: str
    arguments: tuple = ()
    named: dict[str, Any] = field(default_factory=dict)
    group: int | None = None
    deadline_s: float | None = None
    may_load: bool = False


@dataclass(frozen=True)
class Result:
    """What a call returned. `error` says why there is no value: what was raised, or that the
    deadline passed."""

    value: Any = None
    error: str | None = None
    seconds: float = 0.0
    skipped: bool = False


class RewardProcess:
    """The parent's side of a process that runs `process_main`, and the calls that it holds: it
    works on the first."""

    def __init__(self, memory_mb: int | None, shows_prints: bool = False):
        """`shows_prints`: what functions print goes to this process's stderr."""
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        output = 2 if shows_prints else subprocess.DEVNULL
        with theirs:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "unslothrl.rewards.process_main", str(theirs.fileno()),
                 str(memory_mb or 0)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # so that what it starts is killed with it
            )  # fmt: skip
        self.queue: collections.deque[tuple[int, RewardCall, str]] = (
            collections.deque()
        )  # index, token
        self.started = 0.0  # when the first call was, on the monotonic clock
        self.imported: set[str] = set()  # functions
        self.answered: set[str] = set()  # functions that have answered at least once
        self.unsent, self.partial_line = bytearray(), bytearray()

    def hold(self, index: int, call: RewardCall) -> None:
        """Takes a call, which `send` sends."""
        token = secrets.token_hex(16)
        self.unsent += dumps_long([token, call.function, call.arguments, call.named]).encode()
        self.unsent += b"\n"
        self.queue.append((index, call, token))
        if len(self.queue) == 1:
            self.started = time.monotonic()

    def send(self) -> None:
        """Sends what the socket takes now: whoever waits for a stalled process misses deadlines of
        the others."""
        with contextlib.suppress(BlockingIOError, ConnectionError):  # its end is seen by `read`
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent[:CHUNK])]

    def read(self) -> list[bytes] | None:
        """The lines that have arrived whole, or are too long; None when the process has ended."""
        try:
            data = self.socket.recv(CHUNK)
        except ConnectionError:  # it has ended without reading all
            return None
        self.partial_line += data
        if b"\n" not in data and len(self.partial_line) <= MOST_REPLIED:
            return [] if data else None
        *lines, rest = bytes(self.partial_line).split(b"\n")
        self.partial_line = bytearray(rest)
        return lines or [rest]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, 9)
        self.child.wait()


class ProcessPool:
    """`count` processes that calls are made in."""

    def __init__(
        self,
        count: int,
        deadline_s: float = DEADLINE_S,
        memory_mb: int | None = MEMORY_MB,
        shows_prints: bool = False,
    ):
        self.deadline_s, self.memory_mb, self.shows_prints = deadline_s, memory_mb, shows_prints
        self.processes = [RewardProcess(memory_mb, shows_prints) for _ in range(count)]
        self.first_calls: dict[str, float] = {}  # function -> seconds of its slowest first call
        self.late: collections.Counter[str] = collections.Counter()  # functions
        self.closed = False
        self.calling = threading.RLock()  # `close` may come from another thread

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, calls: Sequence[RewardCall], ahead: int = 1) -> list[Result]:
        """The results in order; every call has a deadline of its own. Raises Closed.

        `ahead`: how many short calls a process may hold, so that it need not wait for the next.
        """
        with self.calling:
            try:
                return Round(self, calls, ahead).run()
            finally:
                for process in [each for each in self.processes if each.queue and not self.closed]:
                    self.replace(process)  # what it may still answer belongs to no call

    def allowed_s(self, process: RewardProcess, call: RewardCall) -> float:
        """The seconds that a process has for a call: for its first of a function that may load
        something, what loading has taken elsewhere is added. Until that is known they are many."""
        if call.function not in process.imported:
            return START_S
        own = call.deadline_s or self.deadline_s
        if not call.may_load or call.function in process.answered:
            return own
        if call.function in self.first_calls:
            return own + 2 * self.first_calls[call.function]
        return max(own, min(START_S, LOADING_FACTOR * own))

    def is_silent(self, call: RewardCall) -> bool:
        """Whether it is in vain to call a function, as it has missed every deadline so far."""
        has_answered = call.function in self.first_calls
        return call.may_load and not has_answered and self.late[call.function] >= MOST_SILENT

    def replace(self, process: RewardProcess) -> RewardProcess:
        """Kills a process; a new one takes its place. Raises Closed."""
        process.kill()
        if not self.closed:
            process.socket.close()
            fresh = RewardProcess(self.memory_mb, self.shows_prints)
            self.processes[self.processes.index(process)] = fresh
            if not self.closed:
                return fresh
            fresh.kill()
        raise Closed

    def close(self) -> None:
        """Kills the processes. A call that another thread is making raises Closed."""
        self.closed = True
        for process in list(self.processes):
            process.kill()
        with self.calling:
            for process in self.processes:
                process.socket.close()


class Round:
    """The calls of one `ProcessPool.call` on their way."""

    def __init__(self, pool: ProcessPool, calls: Sequence[RewardCall], ahead: int):
        self.pool, self.calls, self.ahead = pool, calls, ahead
        self.waiting = collections.deque(range(len(calls)))
        self.results: dict[int, Result] = {}
        self.failed: set[int] = set()  # groups
        self.again: set[int] = set()  # calls that are made a second time

    def run(self) -> list[Result]:
        while True:
            if self.pool.closed:
                raise Closed
            for process in self.pool.processes:
                self.feed(process)
            busy = [process for process in self.pool.processes if process.queue]
            if not busy:
                return [self.results[index] for index in range(len(self.calls))]
            readable = self.wait(busy)
            for process in busy:
                if process.socket.fileno() in readable:
                    self.receive(process)
                elif time.monotonic() >= self.deadline(process):
                    self.too_late(process)

    def deadline(self, process: RewardProcess) -> float:
        return process.started + self.pool.allowed_s(process, process.queue[0][1])

    def wait(self, busy: list[RewardProcess]) -> set[int]:
        """The sockets that can be read, once there are some, or one that takes more, or the first
        deadline has passed."""
        poller = select.poll()
        for process in busy:
            poller.register(process.socket, select.POLLIN | bool(process.unsent) * select.POLLOUT)
        seconds = min(map(self.deadline, busy)) - time.monotonic()
        found = poller.poll(max(0.0, seconds) * 1000)
        return {number for number, events in found if events & ~select.POLLOUT}

    def feed(self, process: RewardProcess) -> None:
        """Gives calls to a process while it may hold more; towards the end they are spread
        evenly."""
        ahead = min(self.ahead, 1 + len(self.waiting) // (2 * len(self.pool.processes)))
        while self.waiting and len(process.queue) < ahead:
            index = self.waiting.popleft()
            call = self.calls[index]
            if call.group is not None and call.group in self.failed:
                self.results[index] = Result(skipped=True)
            elif self.pool.is_silent(call):
                error = f"{TOO_LONG}its deadline in all of {MOST_SILENT} calls before this one"
                self.results[index] = Result(None, error)
            else:
                process.hold(index, call)
        process.send()

    def receive(self, process: RewardProcess) -> None:
        lines = process.read()
        if lines is None:
            self.lose(process, ENDED)
            return
        for line in lines:
            reply = opened(process.queue[0][2], line) if process.queue else None
            if reply is None:
                self.lose(process, STRAY)
                return
            if reply == IMPORTED:
                process.imported.add(process.queue[0][1].function)
            else:
                self.record(process, *reply)
            process.started = time.monotonic()

    def record(self, process: RewardProcess, value: object, error: str | None) -> None:
        """The first call of a process has been answered."""
        index, call, _ = process.queue.popleft()
        seconds = time.monotonic() - process.started
        self.results[index] = Result(value, error, seconds)
        if call.function not in process.answered:
            process.answered.add(call.function)
            slowest = max(seconds, self.pool.first_calls.get(call.function, 0.0))
            self.pool.first_calls[call.function] = slowest
        if value is False and call.group is not None:
            self.failed.add(call.group)

    def too_late(self, process: RewardProcess) -> None:
        """The first call of a process has missed its deadline."""
        if process.child.poll() is not None:  # a process that it has started holds its socket
            self.lose(process, ENDED)
            return
        _, call, _ = process.queue[0]
        self.pool.late[call.function] += 1
        allowed, own = self.pool.allowed_s(process, call), call.deadline_s or self.pool.deadline_s
        error = f"{TOO_LONG}{own:g} s"
        if call.function not in process.imported:
            error = f"{TOO_LONG}{allowed:g} s to import"
        elif allowed > own:
            error = f"{error}, and than {allowed:g} s where it may load something"
        self.replace(process, error)

    def lose(self, process: RewardProcess, error: str) -> None:
        """A process has ended, or has written what it was not asked for. Its first call fails
        where that was its own doing: the process had begun no other. Else it is made again in a
        fresh process, and fails where that is lost as well."""
        is_certain = False
        if process.queue:
            index, call, _ = process.queue[0]
            has_begun_one = call.function in process.imported and not process.answered
            is_certain = index in self.again or has_begun_one
        self.replace(process, error if is_certain else None)

    def replace(self, process: RewardProcess, error: str | None) -> None:
        """Puts a fresh process in the place of another, whose first call fails, or is made again in
        the fresh one where there is no error. Those behind it wait again."""
        fresh = self.pool.replace(process)
        first = process.queue.popleft()[0] if process.queue else None
        self.waiting.extendleft(index for index, *_ in reversed(process.queue))
        if first is not None and error is not None:
            self.results[first] = Result(None, error, time.monotonic() - process.started)
        elif first is not None:
            self.again.add(first)
            fresh.hold(first, self.calls[first])

"""Processes for calls that may never end: each call has a deadline, and what misses it is killed.

    with closing(ProcessPool(2)) as pool:
        pool.call([RewardCall("answercheck:same", ("1/2", "0.5"))])   -> [Result(True)]

A process keeps what it has imported. Its memory is limited unless `memory_mb` is None, so that a
runaway computation fails instead of filling the machine. A thread waits for each process.

A process that ends, or that writes anything but a sealed reply to its socket, is replaced, and no
call pays for what another has done to its process: see `ProcessPool.make`.
"""

import collections
import contextlib
import json
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from unslothrl.rewards.functions import opened

MAIN = "import sys; from unslothrl.rewards.functions import main; main(*map(int, sys.argv[1:]))"
CHECK = "unslothrl.rewards.functions:check"
DEADLINE_S = 5.0
START_S = 60.0  # for a process to start and to import a function's module
LOADING_FACTOR = 12.0  # deadlines that a function gets which has not answered yet and may load
MOST_SILENT = 4  # late calls of a function that has never answered, before the rest fails uncalled
MEMORY_MB = 2048
CHUNK = 1 << 16  # bytes that are read at once
MOST_REPLIED = 64 << 20  # bytes of a line that is still taken for a reply
TOO_LONG = "took longer than "
ENDED = "ended its process"
STRAY = "wrote to the descriptor that its process replies on"


class Closed(Exception):
    """The pool was closed during a call."""


class Lost(Exception):
    """The process has ended, has written what is no reply, or has missed a call's deadline."""


class Late(Lost):
    """It has missed the deadline."""


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
    deadline passed. A call that was skipped has neither."""

    value: Any = None
    error: str | None = None
    seconds: float = 0.0


class RewardProcess:
    """The parent's side of a process that runs `functions.main`."""

    def __init__(self, memory_mb: int | None, shows_prints: bool = False):
        """`shows_prints`: what functions print goes to this process's stderr."""
        self.socket, theirs = socket.socketpair()
        output = 2 if shows_prints else subprocess.DEVNULL
        with theirs:
            self.child = subprocess.Popen(
                [sys.executable, "-c", MAIN, str(theirs.fileno()), str(memory_mb or 0)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # so that what it starts is killed with it
            )  # fmt: skip
        self.imported: set[str] = set()  # functions
        self.answered: set[str] = set()  # functions that have answered at least once
        self.received = bytearray()  # and not read

    def exchange(self, call: RewardCall, seconds: float, to: str = "") -> tuple[Any, str | None]:
        """Makes a call -> its value and its error. Late after `seconds`, which are `to` do what;
        Lost where the process has ended or writes anything but the reply."""
        token, ends, data = secrets.token_hex(16), time.monotonic() + seconds, bytes(self.received)
        request = json.dumps([token, call.function, call.arguments, call.named]).encode() + b"\n"
        try:
            self.socket.settimeout(seconds)
            self.socket.sendall(request)
            while b"\n" not in data and len(self.received) <= MOST_REPLIED:
                self.socket.settimeout(max(0.0, ends - time.monotonic()))
                if not (data := self.socket.recv(CHUNK)):
                    raise ConnectionError
                self.received += data
        except OSError as error:  # what an ended process has started may hold its socket
            is_late = not isinstance(error, ConnectionError) and self.child.poll() is None
            raise (Late(f"{TOO_LONG}{seconds:g} s{to}") if is_late else Lost(ENDED)) from None
        line, _, self.received = self.received.partition(b"\n")
        reply = opened(token, bytes(line))
        if reply is None:
            raise Lost(STRAY)
        return reply

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, 9)
        self.child.wait()


class ProcessPool:
    """`count` processes, or one a core, in which calls are made. They start with the first."""

    def __init__(
        self,
        count: int,
        deadline_s: float = DEADLINE_S,
        memory_mb: int | None = MEMORY_MB,
        shows_prints: bool = False,
    ):
        self.count, self.deadline_s = count, deadline_s
        self.memory_mb, self.shows_prints = memory_mb, shows_prints
        self.processes: list[RewardProcess] = []
        self.first_calls: dict[str, float] = {}  # function -> seconds of its slowest first call
        self.late: collections.Counter[str] = collections.Counter()  # functions
        self.idle: queue.LifoQueue[int] = queue.LifoQueue()  # places in `processes`
        self.failed: set[int] = set()  # groups of the calls that are being made
        self.closed = False
        # As long as the pool: a process ends with the thread that started it.
        self.threads = ThreadPoolExecutor(count or len(os.sched_getaffinity(0)))
        self.calling = threading.Lock()  # `close` may come from another thread

    def call(self, calls: Sequence[RewardCall]) -> list[Result]:
        """The results in order; every call has a deadline of its own. Raises Closed."""
        count = self.count or len(os.sched_getaffinity(0))
        with self.calling:
            if not self.processes and not self.closed:
                self.processes = list(self.threads.map(self.begin, range(count)))
                for slot in reversed(range(count)):  # a single call is always in the first
                    self.idle.put(slot)
            if self.closed:
                self.kill()
                raise Closed
            self.failed = set()
            try:
                return list(self.threads.map(self.make, calls))
            except BaseException:  # such as Ctrl-C: the threads end with their processes
                self.kill()
                raise

    def begin(self, slot: int) -> RewardProcess:
        return RewardProcess(self.memory_mb, self.shows_prints)

    def make(self, call: RewardCall) -> Result:
        """Makes a call in an idle process. Where that is lost, perhaps by what an earlier call has
        left behind, it is made again in a fresh one, and fails where that is lost as well."""
        if call.group is not None and call.group in self.failed:
            return Result()
        has_answered = call.function in self.first_calls
        if call.may_load and not has_answered and self.late[call.function] >= MOST_SILENT:
            before = f"{TOO_LONG}its deadline in all of {MOST_SILENT} calls before this one"
            return Result(None, before)
        slot, is_again = self.idle.get(), False
        try:
            while True:
                started = time.monotonic()
                try:
                    return self.make_in(self.processes[slot], call)
                except Lost as error:
                    self.late[call.function] += isinstance(error, Late)
                    self.replace(slot)
                    if is_again or isinstance(error, Late):
                        return Result(None, str(error), time.monotonic() - started)
                    is_again = True
        finally:
            self.idle.put(slot)

    def make_in(self, process: RewardProcess, call: RewardCall) -> Result:
        """Raises Lost."""
        if call.function not in process.imported:
            _, error = process.exchange(RewardCall(CHECK, (call.function,)), START_S, " to import")
            if error is not None:
                return Result(None, error)
            process.imported.add(call.function)
        started = time.monotonic()
        value, error = process.exchange(call, self.allowed_s(process, call))
        seconds = time.monotonic() - started
        if call.function not in process.answered:
            process.answered.add(call.function)
            self.first_calls[call.function] = max(seconds, self.first_calls.get(call.function, 0.0))
        if value is False and call.group is not None:
            self.failed.add(call.group)
        return Result(value, error, seconds)

    def allowed_s(self, process: RewardProcess, call: RewardCall) -> float:
        """The seconds that a process has for a call: for its first of a function that may load
        something, what loading has taken elsewhere is added. Until that is known they are many."""
        own = call.deadline_s or self.deadline_s
        if not call.may_load or call.function in process.answered:
            return own
        if call.function in self.first_calls:
            return own + 2 * self.first_calls[call.function]
        return max(own, min(START_S, LOADING_FACTOR * own))

    def replace(self, slot: int) -> None:
        """Kills a process; a new one takes its place. Raises Closed."""
        self.processes[slot].kill()
        if not self.closed:
            self.processes[slot].socket.close()
            self.processes[slot] = self.begin(slot)
        if self.closed:
            self.processes[slot].kill()
            raise Closed

    def kill(self) -> None:
        self.closed = True
        for process in list(self.processes):
            process.kill()

    def close(self) -> None:
        """Kills the processes. A call that another thread is making raises Closed."""
        self.kill()
        with self.calling:
            self.threads.shutdown()
            for process in self.processes:
                process.socket.close()

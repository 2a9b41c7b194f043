"""Processes for calls that may never end: each call has a deadline, and what misses it is killed.

    with ProcessPool(2) as pool:
        pool.call([RewardCall("answercheck:same", ("1/2", "0.5"))])   -> [Result(True)]

A process keeps what it has imported. Its memory is limited unless `memory_mb` is None, so that a
runaway computation fails instead of filling the machine. A thread waits for each process.

Every reply is sealed with the token of its call, see `functions.sealed`. A process that ends, or
that writes anything else to its socket, is replaced, and no call pays for what another has done to
its process: see `ProcessPool.work`.
"""

import collections
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unslothrl.rewards.functions import IMPORTED, opened

MAIN = "import sys; from unslothrl.rewards.functions import main; main(*map(int, sys.argv[1:]))"
DEADLINE_S = 5.0
START_S = 60.0  # for a process to start and to import a function's module
LOADING_FACTOR = 12.0  # deadlines that a function gets which has not answered yet and may load
MOST_SILENT = 4  # late calls of a function that has never answered, before the rest fails uncalled
MEMORY_MB = 2048
MAX_QUEUED = 32  # calls that a process may hold, where calls are short
CHUNK = 1 << 16  # bytes that are read at once, or sent for several calls: a socket holds them
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


class SentCall(NamedTuple):
    number: int
    call: RewardCall
    token: str
    line: bytes


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
        self.lines: collections.deque[bytes] = collections.deque()  # that have arrived
        self.partial_line = bytearray()

    def exchange(self, data: bytes, ends: float) -> bytes:
        """Sends data -> the next line that arrives. Late at the time `ends`, Lost where the process
        has ended."""
        try:
            self.socket.settimeout(max(0.0, ends - time.monotonic()))
            if data:  # sending nothing fails too where an ended process has left replies to read
                self.socket.sendall(data)
            while not self.lines:
                self.socket.settimeout(max(0.0, ends - time.monotonic()))
                if not (data := self.socket.recv(CHUNK)):
                    raise ConnectionError
                self.partial_line += data
                if b"\n" in data or len(self.partial_line) > MOST_REPLIED:
                    *lines, rest = bytes(self.partial_line).split(b"\n")
                    self.lines.extend(lines or [rest])
                    self.partial_line = bytearray(rest)
        except OSError as error:  # what an ended process has started may hold its socket
            is_late = not isinstance(error, ConnectionError) and self.child.poll() is None
            raise (Late() if is_late else Lost(ENDED)) from None
        return self.lines.popleft()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, 9)
        self.child.wait()


class ProcessPool(contextlib.AbstractContextManager):
    """`count` processes that calls are made in, one for each core where it is 0. They start with
    the first call."""

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
        self.waiting: collections.deque[tuple[int, RewardCall]] = collections.deque()
        self.results: dict[int, Result] = {}  # of the calls that are being made
        self.failed: set[int | None] = set()  # groups of them
        self.closed = False
        self.calling = threading.Lock()  # `close` may come from another thread
        self.taking = threading.Lock()

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, calls: Sequence[RewardCall], ahead: int = 1) -> list[Result]:
        """The results in order; every call has a deadline of its own. Raises Closed.

        `ahead`: how many short calls a process may hold, so that it need not wait for the next.
        """
        count = self.count or len(os.sched_getaffinity(0))
        with self.calling, ThreadPoolExecutor(count) as threads:
            if not self.processes and not self.closed:
                self.processes = [
                    RewardProcess(self.memory_mb, self.shows_prints) for _ in range(count)
                ]
            if self.closed:
                self.kill()
                raise Closed
            self.waiting.extend(enumerate(calls))
            self.results, self.failed = {}, set()
            slots = range(min(len(calls), len(self.processes)))
            try:
                list(threads.map(lambda slot: self.work(slot, ahead), slots))
            except BaseException:  # such as Ctrl-C: the threads end with their processes
                self.kill()
                raise
            return [self.results[index] for index in range(len(calls))]

    def work(self, slot: int, ahead: int) -> None:
        """Makes calls in one of the processes until none waits. Where it is lost, perhaps by what
        an earlier call has left behind, the first call without a reply is made again in a fresh
        process, and fails where that is lost as well."""
        again: SentCall | None = None
        while sent := self.take(ahead) if again is None else [again]:
            process, answered, started = self.processes[slot], 0, time.monotonic()
            try:
                for result in self.answers(process, sent):
                    self.results[sent[answered].number] = result
                    if result.value is False:
                        self.failed.add(sent[answered].call.group)
                    answered, started = answered + 1, time.monotonic()
                again = None
            except Lost as error:
                first, *others = sent[answered:]
                self.replace(slot)
                with self.taking:
                    self.waiting.extendleft((each.number, each.call) for each in reversed(others))
                again = first if first is not again and not isinstance(error, Late) else None
                if again is None:
                    self.results[first.number] = Result(
                        None, str(error), time.monotonic() - started
                    )

    def take(self, ahead: int) -> list[SentCall]:
        """The next calls for a process, as many as it may hold; towards the end they are spread
        evenly. Several fit into its socket: sending them waits for none of them."""
        taken: list[SentCall] = []
        with self.taking:
            most = min(ahead, 1 + len(self.waiting) // (2 * len(self.processes)))
            room = CHUNK
            while self.waiting and len(taken) < most and room > 0:
                index, call = self.waiting.popleft()
                if call.group is not None and call.group in self.failed:
                    self.results[index] = Result()
                    continue
                if self.is_silent(call):
                    error = f"{TOO_LONG}its deadline in all of {MOST_SILENT} calls before this one"
                    self.results[index] = Result(None, error)
                    continue
                token = secrets.token_hex(16)
                line = json.dumps([token, call.function, call.arguments, call.named]).encode()
                taken.append(SentCall(index, call, token, line + b"\n"))
                room -= len(line) + 1
            if room < 0 and len(taken) > 1:
                last = taken.pop()
                self.waiting.appendleft((last.number, last.call))
        return taken

    def answers(self, process: RewardProcess, sent: Sequence[SentCall]) -> Iterator[Result]:
        """Makes calls in a process -> their results in order. Raises Lost."""
        unsent = b"".join(each.line for each in sent)
        for each in sent:
            call = each.call
            reply: Any = IMPORTED
            while reply == IMPORTED:
                started, seconds = time.monotonic(), self.allowed_s(process, call)
                try:
                    reply = opened(each.token, process.exchange(unsent, started + seconds))
                except Late:
                    self.late[call.function] += 1
                    imports = "" if call.function in process.imported else " to import"
                    raise Late(f"{TOO_LONG}{seconds:g} s{imports}") from None
                unsent = b""
                if reply is None:
                    raise Lost(STRAY)
                process.imported.add(call.function)
            value, error = reply
            result = Result(value, error, time.monotonic() - started)
            if call.function not in process.answered:
                process.answered.add(call.function)
                slowest = max(result.seconds, self.first_calls.get(call.function, 0.0))
                self.first_calls[call.function] = slowest
            yield result

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

    def replace(self, slot: int) -> None:
        """Kills a process; a new one takes its place. Raises Closed."""
        self.processes[slot].kill()
        if not self.closed:
            self.processes[slot].socket.close()
            self.processes[slot] = RewardProcess(self.memory_mb, self.shows_prints)
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
            for process in self.processes:
                process.socket.close()

"""Processes for calls that may never end: each call has a deadline, and what misses it is killed.

    with ProcessPool(2) as pool:
        pool.call([Call("answercheck:same", ("1/2", "0.5"))])   -> [Result(True)]

A process keeps what it has imported. One more than is used is kept ready, so that a killed one is
replaced at once. Memory is limited unless `memory_mb` is None, so that a runaway computation fails
instead of filling the machine.

No call pays for what another has done to its process: see `Round.lose`.
"""

import collections
import select
import threading
import time
from collections.abc import Sequence

from unslothrl.rewards.calls import Call, Result
from unslothrl.rewards.functions import IMPORTED, opened
from unslothrl.rewards.loading import START_S, Loading
from unslothrl.rewards.process import RewardProcess, SentCall

DEADLINE_S = 5.0
MEMORY_MB = 2048
MAX_QUEUED = 32  # calls that a process may hold, where calls are short
MOST_SILENT = 4  # calls of a function that has never answered, before the rest fails uncalled
TOO_LONG = "took longer than "
ENDED = "ended its process"
STRAY = "wrote to the descriptor that its process replies on"


class Closed(Exception):
    """The pool was closed during a call."""


class ProcessPool:
    """`count` processes that calls are made in, and one to spare."""

    def __init__(
        self,
        count: int,
        deadline_s: float = DEADLINE_S,
        memory_mb: int | None = MEMORY_MB,
        shows_prints: bool = False,
    ):
        self.deadline_s, self.memory_mb, self.shows_prints = deadline_s, memory_mb, shows_prints
        self.working = [self.process() for _ in range(count)]
        self.spare = self.process()
        self.loading = Loading()
        self.closed = self.calling = False
        self.lock = threading.RLock()  # `close` may come from another thread

    def process(self) -> RewardProcess:
        return RewardProcess(self.memory_mb, self.shows_prints)

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, calls: Sequence[Call], ahead: int = 1) -> list[Result]:
        """The results in order; every call has a deadline of its own.

        `ahead` (at most `MAX_QUEUED`): how many short calls a process may hold, so that it need not
        wait for the next.
        """
        with self.lock:
            if self.closed:
                raise Closed
            self.calling = True
        try:
            return Round(self, calls, min(ahead, MAX_QUEUED)).run()
        finally:
            with self.lock:
                self.calling = False
                if self.closed:
                    self.close()
                for process in [each for each in self.working if each.queue and not self.closed]:
                    self.replace(process)  # what it may still answer belongs to no call

    def replace(self, process: RewardProcess) -> RewardProcess:
        """Kills a process; the spare takes its place, or a new one where it has ended. Raises
        Closed."""
        with self.lock:
            if self.closed:
                raise Closed
            fresh, self.spare = self.spare, self.process()
            ended = [process]
            if fresh.has_stirred():
                ended.append(fresh)
                fresh = self.process()
            self.working[self.working.index(process)] = fresh
            for each in ended:
                each.kill()
                each.close()
            return fresh

    def close(self) -> None:
        """Kills the processes. A call that another thread is making raises Closed."""
        with self.lock:
            for process in (*self.working, self.spare):
                if not self.closed:
                    process.kill()
                if not self.calling:
                    process.close()
            self.closed = True


class Round:
    """The calls of one `ProcessPool.call` on their way."""

    def __init__(self, pool: ProcessPool, calls: Sequence[Call], ahead: int):
        self.pool, self.calls, self.ahead = pool, calls, ahead
        self.waiting = collections.deque(range(len(calls)))
        self.results: dict[int, Result] = {}
        self.failed: set[int] = set()  # groups
        self.again: set[int] = set()  # calls that are made a second time
        self.late: collections.Counter[str] = collections.Counter()  # functions that were too late

    def run(self) -> list[Result]:
        while True:
            for process in list(self.pool.working):
                self.feed(process)
            busy = [process for process in self.pool.working if process.queue]
            if not busy:
                return [self.results[index] for index in range(len(self.calls))]
            readable = self.wait(min(process.deadline for process in busy))
            for process in list(self.pool.working):
                if process.replies in readable:
                    self.receive(process)
            now = time.monotonic()
            for process in list(self.pool.working):
                if process.queue and now >= process.deadline:
                    self.too_late(process)

    def wait(self, until: float) -> set[int]:
        """The descriptors that can be read, once there are some, or room in a pipe that a call
        waits for."""
        poller = select.poll()
        for process in self.pool.working:
            poller.register(process.replies, select.POLLIN)
            if process.unsent:
                poller.register(process.requests, select.POLLOUT)
        return {number for number, _ in poller.poll(max(0.0, until - time.monotonic()) * 1000)}

    def feed(self, process: RewardProcess) -> None:
        """Gives calls to a process while it may hold more; towards the end they are spread
        evenly."""
        if self.waiting and not process.queue and process.has_stirred():
            process = self.replace(process)
        ahead = min(self.ahead, 1 + len(self.waiting) // (2 * len(self.pool.working)))
        while self.waiting and len(process.queue) < ahead:
            index = self.waiting[0]
            uncalled = self.uncalled(self.calls[index])
            if uncalled is not None:
                self.results[index] = uncalled
            elif not process.hold(self.sent(process, index)):
                break
            self.waiting.popleft()
        process.write()

    def uncalled(self, call: Call) -> Result | None:
        """The result of a call that need not be made: its group has failed, or its function has
        missed too many deadlines."""
        if call.group is not None and call.group in self.failed:
            return Result(skipped=True)
        is_silent = call.function in self.pool.loading.silent
        if is_silent and self.late[call.function] >= MOST_SILENT:
            error = f"{TOO_LONG}its deadline in all of {MOST_SILENT} calls before this one"
            return Result(None, error)
        return None

    def sent(self, process: RewardProcess, index: int) -> SentCall:
        call = self.calls[index]
        deadline_s = call.deadline_s or self.pool.deadline_s
        is_first = call.function not in process.answered
        if is_first:
            deadline_s = self.pool.loading.allowed_s(call, deadline_s, index in self.again)
        return SentCall(index, call, deadline_s, is_first)

    def receive(self, process: RewardProcess) -> None:
        lines = process.read()
        if lines is None:
            self.lose(process, ENDED)
            return
        for line in lines:
            reply = opened(process.queue[0].token, line) if process.queue else None
            if reply is None:
                self.lose(process, STRAY)
                return
            if reply == IMPORTED:
                process.record_import()
            else:
                self.record(process, *reply)

    def record(self, process: RewardProcess, value: object, error: str | None) -> None:
        """The first call of a process has been answered."""
        sent = process.queue.popleft()
        call, seconds = sent.call, time.monotonic() - process.started
        self.results[sent.index] = Result(value, error, seconds)
        process.answered.add(call.function)
        if sent.is_first:
            self.pool.loading.record(call.function, seconds)
        if value is False and call.group is not None:
            self.failed.add(call.group)
        process.start_clock()

    def too_late(self, process: RewardProcess) -> None:
        """The first call of a process has missed its deadline. If it was the first of its function
        in the process, it may have been loading something."""
        if process.child.poll() is not None:  # a process that it has started holds its pipes
            self.lose(process, ENDED)
            return
        sent, loading = process.queue[0], self.pool.loading
        call = sent.call
        error = f"{TOO_LONG}{call.deadline_s or self.pool.deadline_s:g} s"
        self.late[call.function] += 1
        if call.function not in process.imported:
            error = f"{TOO_LONG}{START_S:g} s to import"
        elif sent.is_first and loading.may_retry(call):
            if sent.index not in self.again:
                self.replace(process)
                return
            loading.silent.add(call.function)
            error = f"{error}, and than {sent.allowed_s:g} s where it may load something"
        self.replace(process, error)

    def lose(self, process: RewardProcess, error: str) -> None:
        """A process has ended, or has written what it was not asked for. Its first call fails
        where that was its own doing: the process had begun no other. Else it is made again in a
        fresh process, and fails where that is lost as well."""
        first = process.queue[0] if process.queue else None
        is_certain = first is not None and (first.index in self.again or process.has_begun_one())
        self.replace(process, error if is_certain else None)

    def replace(self, process: RewardProcess, error: str | None = None) -> RewardProcess:
        """Puts a fresh process in the place of another, whose first call fails, or is made again in
        the fresh one where there is no error. Those behind it wait again."""
        fresh = self.pool.replace(process)
        first = process.queue.popleft() if process.queue else None
        self.waiting.extendleft(sent.index for sent in reversed(process.queue))
        if first is not None and error is not None:
            self.results[first.index] = Result(None, error, time.monotonic() - process.started)
        elif first is not None:
            self.again.add(first.index)
            fresh.hold(self.sent(fresh, first.index))
        return fresh

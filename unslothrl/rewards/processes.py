"""Processes for calls that may never end: each call has a deadline, and what misses it is killed.

    with ProcessPool(2) as pool:
        pool.call([Call("unslothrl.rewards.maths:same", ("1/2", "0.5"))])   -> [Result(True)]

A process keeps what it has imported. One more than is used is kept ready, so that a killed one is
replaced at once. Memory is limited unless `memory_mb` is None, so that a runaway computation fails
instead of filling the machine.
"""

import collections
import selectors
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
        self.lock = threading.Lock()  # `close` may come from another thread

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
        with Round(self, calls, min(ahead, MAX_QUEUED)) as calling:
            return calling.run()

    def replace(self, process: RewardProcess) -> RewardProcess:
        """Kills a process; the spare takes its place. Raises Closed."""
        with self.lock:
            if self.closed:
                raise Closed
            process.kill()
            process.close()
            new, self.spare = self.spare, self.process()
            self.working[self.working.index(process)] = new
            return new

    def close(self) -> None:
        """Kills the processes. A call that another thread is making raises Closed."""
        with self.lock:
            processes = [] if self.closed else [*self.working, self.spare]
            self.closed = True
            for process in processes:
                process.kill()
                if not self.calling:
                    process.close()

    def begin(self) -> None:
        with self.lock:
            if self.closed:
                raise Closed
            self.calling = True

    def end(self) -> None:
        with self.lock:
            self.calling = False
            for process in (*self.working, self.spare) if self.closed else ():
                process.close()


class Round:
    """The calls of one `ProcessPool.call` on their way."""

    def __init__(self, pool: ProcessPool, calls: Sequence[Call], ahead: int):
        self.pool, self.calls, self.ahead = pool, calls, ahead
        self.waiting = collections.deque(range(len(calls)))
        self.results: list[Result | None] = [None] * len(calls)
        self.failed: set[int] = set()  # groups
        self.retried: set[int] = set()  # calls that are tried a second time
        self.late: collections.Counter[str] = collections.Counter()  # functions that were too late
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> "Round":
        self.pool.begin()
        for process in self.pool.working:
            self.listen(process)
        return self

    def __exit__(self, *_: object) -> None:
        self.selector.close()
        try:
            for process in [each for each in self.pool.working if each.queue]:
                if not self.pool.closed:
                    self.pool.replace(process)  # what it may still answer belongs to no call
        finally:
            self.pool.end()

    def listen(self, process: RewardProcess) -> None:
        assert process.child.stdout is not None
        self.selector.register(process.child.stdout, selectors.EVENT_READ, process)

    def run(self) -> list[Result]:
        while True:
            for process in list(self.pool.working):
                self.feed(process)
            busy = [process for process in self.pool.working if process.queue]
            if not busy:
                break
            nearest = min(process.deadline for process in busy)
            self.listen_for_room(busy)
            for key, events in self.selector.select(max(0.0, nearest - time.monotonic())):
                if events & selectors.EVENT_WRITE:
                    self.write(key.data)
                else:
                    self.receive(key.data)
            now = time.monotonic()
            for process in [each for each in busy if each.queue and now >= each.deadline]:
                self.too_late(process)
        return [result for result in self.results if result is not None]

    def feed(self, process: RewardProcess) -> None:
        """Sends calls while the process may hold more; towards the end they are spread evenly."""
        count = len(self.pool.working)
        ahead = min(self.ahead, 1 + len(self.waiting) // (2 * count))
        while self.waiting and len(process.queue) < ahead:
            index = self.waiting[0]
            call = self.calls[index]
            if call.group is not None and call.group in self.failed:
                self.results[self.waiting.popleft()] = Result(skipped=True)
                continue
            if self.late and self.is_given_up(call):
                error = f"{TOO_LONG}its deadline in all of {MOST_SILENT} calls before this one"
                self.results[self.waiting.popleft()] = Result(None, error)
                continue
            sent = self.sent(process, index)
            if not process.has_room(sent):
                return
            self.waiting.popleft()
            try:
                process.send(sent)
            except BrokenPipeError:
                self.replace(process, "its process had ended")
                return

    def is_given_up(self, call: Call) -> bool:
        """Whether a function has missed so many deadlines that it is not called again."""
        is_silent = call.function in self.pool.loading.silent
        return is_silent and self.late[call.function] >= MOST_SILENT

    def sent(self, process: RewardProcess, index: int) -> SentCall:
        call = self.calls[index]
        deadline_s = call.deadline_s or self.pool.deadline_s
        is_first = call.function not in process.answered
        if is_first:
            deadline_s = self.pool.loading.allowed_s(call, deadline_s, index in self.retried)
        return SentCall(index, call, deadline_s, is_first)

    def listen_for_room(self, processes: Sequence[RewardProcess]) -> None:
        """Waits for room in the pipes of those processes alone that have something to be sent."""
        for process in processes:
            if bool(process.unsent) is process.is_selected_for_writing:
                continue
            assert process.child.stdin is not None
            if process.unsent:
                self.selector.register(process.child.stdin, selectors.EVENT_WRITE, process)
            else:
                self.selector.unregister(process.child.stdin)
            process.is_selected_for_writing = not process.is_selected_for_writing

    def write(self, process: RewardProcess) -> None:
        if process not in self.pool.working:
            return  # it was replaced just now
        try:
            process.write()
        except BrokenPipeError:
            self.replace(process, "its process had ended")

    def receive(self, process: RewardProcess) -> None:
        if process not in self.pool.working:
            return
        lines = process.read()
        if lines is None:
            self.replace(process, "ended its process")
            return
        for line in lines:
            reply = opened(process.queue[0].token, line) if process.queue else None
            if reply is None:
                self.replace(process, STRAY)
                return
            if reply == IMPORTED:
                process.record_import()
                continue
            value, error = reply
            sent = process.queue.popleft()
            seconds = time.monotonic() - process.started
            self.results[sent.index] = Result(value, error, seconds)
            process.answered.add(sent.call.function)
            if sent.is_first:
                self.pool.loading.record(sent.call.function, seconds)
            if value is False and sent.call.group is not None:
                self.failed.add(sent.call.group)
            process.start_clock()

    def too_late(self, process: RewardProcess) -> None:
        """The first call of a process has missed its deadline. If it was the first of its function
        in the process, it may have been loading something."""
        sent, loading = process.queue[0], self.pool.loading
        call = sent.call
        error: str | None = f"{TOO_LONG}{call.deadline_s or self.pool.deadline_s:g} s"
        if call.function not in process.imported:
            error = f"{TOO_LONG}{START_S:g} s to import"
        elif sent.index in self.retried:
            loading.silent.add(call.function)
            error = f"{error}, and than {sent.allowed_s:g} s where it may load something"
        elif sent.is_first and loading.may_retry(call):
            self.retried.add(sent.index)
            error = None
        self.late[call.function] += 1
        self.replace(process, error)

    def replace(self, process: RewardProcess, error: str | None) -> None:
        """Replaces a process. Its first call has failed with it, or waits again where there is no
        error; the others wait again."""
        if process.queue and error is not None:
            first = process.queue.popleft()
            self.results[first.index] = Result(None, error, time.monotonic() - process.started)
        self.waiting.extendleft(sent.index for sent in reversed(process.queue))
        process.queue.clear()
        self.selector.unregister(process.child.stdout)  # type: ignore[arg-type]
        if process.is_selected_for_writing:
            self.selector.unregister(process.child.stdin)  # type: ignore[arg-type]
        self.listen(self.pool.replace(process))

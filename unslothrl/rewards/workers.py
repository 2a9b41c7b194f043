"""Processes for work that may never end: each call has a deadline, and who misses it is killed.

    with Workers(2) as workers:
        workers.call([Call("unslothrl.rewards.maths:same", ("1/2", "0.5"))])   -> [Result(True)]

A call names a function, "module:function" or "file.py:function", and what it is given: JSON values.
Workers keep what they have imported. One more than is used is kept warm, so that a killed one is
replaced at once. Memory is limited unless `memory_mb` is None, so that a runaway computation fails
instead of filling the machine.
"""

import collections
import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from unslothrl import long_json

DEADLINE_S = 5.0
MEMORY_MB = 2048
START_S = 60.0  # for a process to start and to import a function's module
CHUNK = 1 << 16  # bytes that are read or written at once
LOAD = 12.0  # deadlines that a first call may take which loads something
MOST_SILENT = 4  # calls of a function that has never answered, before the rest is left uncalled
TOO_LONG = "took longer than "
IMPORTED = b"imported"  # the line that says so
AHEAD = 32  # calls that wait at a worker, where calls are short
AHEAD_BYTES = 32 << 10  # of them


@dataclass(frozen=True)
class Call:
    """`group`: once a call of a group has returned False, the rest of it is left out.
    `deadline_s`: its own; None: that of all. `may_load`: see `Loading`."""

    function: str
    arguments: tuple = ()
    named: dict[str, Any] = field(default_factory=dict)
    group: int | None = None
    deadline_s: float | None = None
    may_load: bool = False


@dataclass(frozen=True)
class Result:
    """`error` says why there is no value: what was raised, or that the deadline passed."""

    value: Any = None
    error: str | None = None
    seconds: float = 0.0
    left_out: bool = False


@dataclass
class Sent:
    """A call at a worker."""

    index: int
    call: Call
    size: int  # bytes
    allowed_s: float  # for the call itself
    is_first: bool  # of its function in its process


class Worker:
    """One process, `unslothrl.rewards.worker`, that answers a line with a line."""

    def __init__(self, memory_mb: int | None):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "unslothrl.rewards.worker", str(memory_mb or 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # so that what it starts is killed with it
        )
        self.queue: collections.deque[Sent] = collections.deque()  # the first is worked on
        self.began = self.ends = 0.0  # of the first
        self.known: set[str] = set()  # functions that it has imported
        self.warm: set[str] = set()  # functions that have answered
        self.unsent = bytearray()  # what its pipe has no room for; that may be a page, or less
        self.is_waited_for = False  # whether the selector waits for room in it
        self.rest = b""
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)

    def room(self, size: int) -> bool:
        """Whether it may hold one more call."""
        waiting = sum(sent.size for sent in self.queue)
        return not self.queue or waiting + size <= AHEAD_BYTES

    def send(self, line: bytes, sent: Sent) -> None:
        """Raises BrokenPipeError where the process has ended."""
        self.queue.append(sent)
        if len(self.queue) == 1:
            self.start_clock()
        self.unsent += line
        self.write()

    def write(self) -> None:
        """Writes what its pipe takes now: who waited for a stalled process would miss deadlines.
        Raises BrokenPipeError."""
        assert self.process.stdin is not None
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: os.write(self.process.stdin.fileno(), self.unsent[:CHUNK])]

    def start_clock(self) -> None:
        """The deadline of the first call; it counts from where its function is imported."""
        if self.queue:
            first = self.queue[0]
            self.began = time.monotonic()
            is_known = first.call.function in self.known
            self.ends = self.began + (first.allowed_s if is_known else START_S)

    def imported(self) -> None:
        self.known.add(self.queue[0].call.function)
        self.start_clock()

    def read(self) -> list[bytes] | None:
        """The lines that have arrived whole; None when the process has ended."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), CHUNK)
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines if data else None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()

    def close(self) -> None:
        """After `kill`, when nobody listens any more."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@dataclass
class Loading:
    """What is known of how long the first call of a function takes in a process: it may load a
    model, which no deadline of a call could allow for.

    The first that misses its deadline, of a function that has never answered, is tried once more
    with `LOAD` times as long. Where that succeeds, first calls may take so long from then on.
    """

    seconds: dict[str, float] = field(default_factory=dict)  # of the slowest first call
    silent: set[str] = field(default_factory=set)  # functions that have not answered even then

    def allowed_s(self, call: Call, deadline_s: float, is_again: bool) -> float:
        """For the first call of a function in a process."""
        if not call.may_load:
            return deadline_s
        if is_again:
            return load_s(deadline_s)
        return deadline_s + 2 * self.seconds.get(call.function, 0.0)

    def may_be_tried_again(self, call: Call) -> bool:
        known = call.function in self.seconds or call.function in self.silent
        return call.may_load and not known

    def has_answered(self, function: str, seconds: float) -> None:
        self.silent.discard(function)
        self.seconds[function] = max(seconds, self.seconds.get(function, 0.0))


def load_s(deadline_s: float) -> float:
    return min(START_S, LOAD * deadline_s)


class Closed(Exception):
    """The workers were closed while they were at work."""


class Workers:
    """`count` processes at work."""

    def __init__(
        self, count: int, deadline_s: float = DEADLINE_S, memory_mb: int | None = MEMORY_MB
    ):
        self.deadline_s, self.memory_mb = deadline_s, memory_mb
        self.working = [Worker(memory_mb) for _ in range(count)]
        self.spare = Worker(memory_mb)
        self.loading = Loading()
        self.closed = self.calling = False
        self.lock = threading.Lock()  # `close` may come from another thread

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, calls: Sequence[Call], ahead: int = 1) -> list[Result]:
        """The results in order; every call has a deadline of its own.

        `ahead` (at most `AHEAD`): how many short calls a worker may hold, so that it need not wait
        for the next.
        """
        with Round(self, calls, min(ahead, AHEAD)) as one:
            return one.run()

    def replace(self, worker: Worker) -> Worker:
        """Kills a worker; the spare takes its place. Raises Closed."""
        with self.lock:
            if self.closed:
                raise Closed
            worker.kill()
            worker.close()
            new, self.spare = self.spare, Worker(self.memory_mb)
            self.working[self.working.index(worker)] = new
            return new

    def close(self) -> None:
        """Ends a call in another thread too, which raises Closed."""
        with self.lock:
            everyone = [] if self.closed else [*self.working, self.spare]
            self.closed = True
            for worker in everyone:
                worker.kill()
                if not self.calling:
                    worker.close()

    def begin(self) -> None:
        with self.lock:
            if self.closed:
                raise Closed
            self.calling = True

    def end(self) -> None:
        with self.lock:
            self.calling = False
            for worker in (*self.working, self.spare) if self.closed else ():
                worker.close()


class Round:
    """The calls of one `Workers.call` on their way."""

    def __init__(self, workers: Workers, calls: Sequence[Call], ahead: int):
        self.workers, self.calls, self.ahead = workers, calls, ahead
        self.waiting = collections.deque(range(len(calls)))
        self.results: list[Result | None] = [None] * len(calls)
        self.failed: set[int] = set()  # groups
        self.again: set[int] = set()  # calls that are tried a second time
        self.late: collections.Counter[str] = collections.Counter()  # functions that were too late
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> "Round":
        self.workers.begin()
        for worker in self.workers.working:
            self.listen(worker)
        return self

    def __exit__(self, *_: object) -> None:
        self.selector.close()
        try:
            for worker in [one for one in self.workers.working if one.queue]:
                if not self.workers.closed:
                    self.workers.replace(worker)  # what it still answers is nobody's
        finally:
            self.workers.end()

    def listen(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

    def run(self) -> list[Result]:
        while True:
            for worker in list(self.workers.working):
                self.feed(worker)
            busy = [worker for worker in self.workers.working if worker.queue]
            if not busy:
                break
            nearest = min(worker.ends for worker in busy)
            self.listen_for_room(busy)
            for key, events in self.selector.select(max(0.0, nearest - time.monotonic())):
                if events & selectors.EVENT_WRITE:
                    self.write(key.data)
                else:
                    self.receive(key.data)
            now = time.monotonic()
            for worker in [one for one in busy if one.queue and now >= one.ends]:
                self.too_late(worker)
        return [result for result in self.results if result is not None]

    def feed(self, worker: Worker) -> None:
        """Sends calls while the worker may hold more; towards the end, all workers get alike."""
        count = len(self.workers.working)
        ahead = min(self.ahead, 1 + len(self.waiting) // (2 * count))
        while self.waiting and len(worker.queue) < ahead:
            index = self.waiting[0]
            call = self.calls[index]
            if call.group is not None and call.group in self.failed:
                self.results[self.waiting.popleft()] = Result(left_out=True)
                continue
            if self.late and self.is_given_up(call):
                error = f"{TOO_LONG}its deadline in all of {MOST_SILENT} calls before this one"
                self.results[self.waiting.popleft()] = Result(None, error)
                continue
            line = long_json.dumps([call.function, call.arguments, call.named]).encode() + b"\n"
            if not worker.room(len(line)):
                return
            self.waiting.popleft()
            try:
                worker.send(line, self.sent(worker, index, len(line)))
            except BrokenPipeError:
                self.give_up(worker, "its process had ended")
                return

    def is_given_up(self, call: Call) -> bool:
        is_silent = call.function in self.workers.loading.silent
        return is_silent and self.late[call.function] >= MOST_SILENT

    def sent(self, worker: Worker, index: int, size: int) -> Sent:
        call = self.calls[index]
        deadline_s = call.deadline_s or self.workers.deadline_s
        is_first = call.function not in worker.warm
        if is_first:
            deadline_s = self.workers.loading.allowed_s(call, deadline_s, index in self.again)
        return Sent(index, call, size, deadline_s, is_first)

    def listen_for_room(self, workers: Sequence[Worker]) -> None:
        """Waits for room in the pipes of those alone that have something to be sent."""
        for worker in workers:
            if bool(worker.unsent) is worker.is_waited_for:
                continue
            assert worker.process.stdin is not None
            if worker.unsent:
                self.selector.register(worker.process.stdin, selectors.EVENT_WRITE, worker)
            else:
                self.selector.unregister(worker.process.stdin)
            worker.is_waited_for = not worker.is_waited_for

    def write(self, worker: Worker) -> None:
        if worker not in self.workers.working:
            return  # it was replaced just now
        try:
            worker.write()
        except BrokenPipeError:
            self.give_up(worker, "its process had ended")

    def receive(self, worker: Worker) -> None:
        if worker not in self.workers.working:
            return
        lines = worker.read()
        if lines is None:
            self.give_up(worker, "ended its process")
            return
        for line in lines:
            if line == IMPORTED:
                worker.imported()
                continue
            value, error = json.loads(line)
            sent = worker.queue.popleft()
            seconds = time.monotonic() - worker.began
            self.results[sent.index] = Result(value, error, seconds)
            worker.warm.add(sent.call.function)
            if sent.is_first:
                self.workers.loading.has_answered(sent.call.function, seconds)
            if value is False and sent.call.group is not None:
                self.failed.add(sent.call.group)
            worker.start_clock()

    def too_late(self, worker: Worker) -> None:
        """The first call of a worker has missed its deadline. If it was the first of its function
        in the process, it may have been loading something."""
        sent, loading = worker.queue[0], self.workers.loading
        call = sent.call
        error: str | None = f"{TOO_LONG}{call.deadline_s or self.workers.deadline_s:g} s"
        if call.function not in worker.known:
            error = f"{TOO_LONG}{START_S:g} s to import"
        elif sent.index in self.again:
            loading.silent.add(call.function)
            error = f"{error}, and than {sent.allowed_s:g} s where it may load something"
        elif sent.is_first and loading.may_be_tried_again(call):
            self.again.add(sent.index)
            error = None
        self.late[call.function] += 1
        self.give_up(worker, error)

    def give_up(self, worker: Worker, error: str | None) -> None:
        """The first call of a worker has failed with its process, or waits again where there is no
        error; the others wait again."""
        if worker.queue and error is not None:
            first = worker.queue.popleft()
            self.results[first.index] = Result(None, error, time.monotonic() - worker.began)
        self.waiting.extendleft(sent.index for sent in reversed(worker.queue))
        worker.queue.clear()
        self.selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        if worker.is_waited_for:
            self.selector.unregister(worker.process.stdin)  # type: ignore[arg-type]
        self.listen(self.workers.replace(worker))

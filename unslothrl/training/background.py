"""Work that the loop does not wait for: writing files, and drawing the next tasks, in a thread."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from unslothrl.records import Task

MOST_WAITING = 4  # calls; the loop waits when there are more, because their arguments take memory

SIGNAL_S = 1.0  # the longest that a signal may stay unseen while the loop waits for tasks


class Background:
    """Runs calls in a thread, one after the other, in the order in which they were given.

    What a call raises is raised again by a later `run` or by `wait`.
    """

    def __init__(self):
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="background")
        self.waiting: deque[Future] = deque()

    def run(self, function: Callable, *arguments: Any) -> None:
        """Queues a call. Waits for the oldest one while `MOST_WAITING` are unfinished."""
        while self.waiting and (self.waiting[0].done() or len(self.waiting) >= MOST_WAITING):
            self.waiting.popleft().result()
        self.waiting.append(self.thread.submit(function, *arguments))

    def wait(self) -> None:
        """Returns when every call has finished."""
        while self.waiting:
            self.waiting.popleft().result()


class DrawCancelled(Exception):
    """Ends a draw whose tasks are no longer needed."""


class PrefetchedTasks:
    """A source of tasks that draws the next step's tasks while the current step runs."""

    def __init__(self, source: Any):
        self.source = source
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="tasks")
        self.requested: tuple[int, int] | None = None
        self.pending: Future[tuple[list[Task], int]] | None = None
        self.is_closed = False

    def draw(self, position: int, count: int, is_last: bool = False) -> tuple[list[Task], int]:
        """As `source.draw`: -> (tasks, the position after them). `is_last`: prefetch no more."""
        if self.pending is None or self.requested != (position, count):
            self.pending = self.submit(position, count)
        while not self.pending.done():  # wakes up for a Ctrl-C that came just before the wait
            wait([self.pending], SIGNAL_S)
        drawn = self.pending.result()
        self.pending = None
        if not is_last:
            self.requested = (drawn[1], count)
            self.pending = self.submit(*self.requested)
        return drawn

    def submit(self, position: int, count: int) -> Future[tuple[list[Task], int]]:
        return self.thread.submit(self.source.draw, position, count, self.check_wanted)

    def check_wanted(self) -> None:
        if self.is_closed:
            raise DrawCancelled

    def close(self) -> None:
        """Cancels a draw in progress, for which Python would otherwise wait at exit."""
        self.is_closed = True
        self.thread.shutdown(wait=False, cancel_futures=True)

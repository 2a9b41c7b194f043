"""What the loop does not wait for: files are written, and the next tasks drawn, in a thread."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from unslothrl.types import Task

MOST_WAITING = 4  # then the loop waits: what waits takes memory


class Background:
    """Calls in the order in which they were given, one after the other.

    What a call raises is raised by the next `run` or by `wait`.
    """

    def __init__(self):
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="background")
        self.waiting: deque[Future] = deque()

    def run(self, function: Callable, *arguments: Any) -> None:
        while self.waiting and (self.waiting[0].done() or len(self.waiting) >= MOST_WAITING):
            self.waiting.popleft().result()
        self.waiting.append(self.thread.submit(function, *arguments))

    def wait(self) -> None:
        """Returns when everything is done."""
        while self.waiting:
            self.waiting.popleft().result()


class Stopped(Exception):
    """Nobody waits for these tasks any more."""


class DrawnAhead:
    """A source of tasks whose next draw is made while the step of the last one runs."""

    def __init__(self, source: Any):
        self.source = source
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="tasks")
        self.asked: tuple[int, int] | None = None
        self.coming: Future[tuple[list[Task], int]] | None = None
        self.is_closed = False

    def draw(self, position: int, count: int, is_last: bool = False) -> tuple[list[Task], int]:
        """As the source's own `draw`; after the last step nothing is drawn ahead."""
        if self.coming is None or self.asked != (position, count):
            self.coming = self.submit(position, count)
        drawn = self.coming.result()
        self.coming = None
        if not is_last:
            self.asked = (drawn[1], count)
            self.coming = self.submit(*self.asked)
        return drawn

    def submit(self, position: int, count: int) -> Future[tuple[list[Task], int]]:
        return self.thread.submit(self.source.draw, position, count, self.check_wanted)

    def check_wanted(self) -> None:
        if self.is_closed:
            raise Stopped

    def close(self) -> None:
        """Ends a draw that is under way; Python would wait for it before it ends."""
        self.is_closed = True
        self.thread.shutdown(wait=False, cancel_futures=True)

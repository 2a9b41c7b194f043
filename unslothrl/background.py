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


class DrawnAhead:
    """A source of tasks whose next draw is made while the step of the last one runs."""

    def __init__(self, source: Any):
        self.source = source
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="tasks")
        self.asked: tuple[int, int] | None = None
        self.coming: Future[tuple[list[Task], int]] | None = None

    def draw(self, position: int, count: int) -> tuple[list[Task], int]:
        """As the source's own `draw`."""
        if self.coming is None or self.asked != (position, count):
            self.coming = self.thread.submit(self.source.draw, position, count)
        drawn = self.coming.result()
        self.asked = (drawn[1], count)
        self.coming = self.thread.submit(self.source.draw, *self.asked)
        return drawn

"""After which steps a checkpoint is written."""

import math
import statistics
from collections import deque
from collections.abc import Callable

SHARE = 0.02  # of a run's time that checkpoints may take, where the user does not say how often
KEPT = 5  # steps and checkpoints that are remembered


class CheckpointSchedule:
    """Every `every` steps, and after the last; where that is None, as often as `SHARE` allows, and
    after each step to begin with. Seconds may be told by another thread."""

    def __init__(self, every: int | None, note: Callable[[str], None] = lambda line: None):
        """`note` gets a line where more than one step may be lost that the user did not choose."""
        self.every, self.is_derived, self.note = every or 1, every is None, note
        self.steps_s: deque[float] = deque(maxlen=KEPT)
        self.saves_s: deque[float] = deque(maxlen=KEPT)
        self.last = self.noted = 1

    def saved(self, seconds: float) -> None:
        """That one has taken."""
        self.saves_s.append(seconds)

    def stepped(self, seconds: float) -> None:
        """That a step has taken."""
        self.steps_s.append(seconds)
        if not self.is_derived or not self.saves_s:
            return
        save_s, step_s = statistics.median(self.saves_s), statistics.median(self.steps_s)
        self.every = max(1, math.ceil(save_s / (SHARE * step_s)))
        if self.every >= (2 if self.noted == 1 else 4 * self.noted):
            self.noted = self.every
            self.note(
                f"a checkpoint takes {save_s:.2g} s, a step {step_s:.2g} s: one every {self.every} "
                f"steps, {SHARE:.0%} of the time. A run that is killed (not Ctrl-C) loses at most "
                "these: set --checkpoint_every for fewer"
            )

    def is_due(self, step: int, total: int) -> bool:
        """Whether one is written after this step of `total`."""
        if self.is_derived:
            due = step - self.last >= self.every or step == 1
        else:
            due = step % self.every == 0
        if due or step == total:
            self.last = step
            return True
        return False

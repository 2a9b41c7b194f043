"""After which steps a checkpoint is written."""

import math
import statistics
from collections import deque
from collections.abc import Callable

SHARE = 0.02  # of a run's time that checkpoints may take, where the user does not say how often
KEPT = 5  # steps and checkpoints that are remembered


class CheckpointSchedule:
    """Every `every` steps, and after the last; where that is None, as often as `SHARE` allows in
    powers of two, and after each step to begin with. Seconds may be told by another thread."""

    def __init__(self, every: int | None, note: Callable[[str], None] = lambda line: None):
        """`note` gets a line whenever more steps may be lost than the last one said."""
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
        self.every = 1 << max(0, math.ceil(math.log2(save_s / (SHARE * step_s))))
        if self.every > self.noted:
            self.noted = self.every
            self.note(
                f"a checkpoint takes {save_s:.2g} s and a step {step_s:.2g} s, so one is written "
                f"every {self.every} steps: kill -9 or a power cut loses up to {self.every} steps; "
                "--checkpoint_every 1 lowers that"
            )

    def is_due(self, step: int, total: int) -> bool:
        """Whether one is written after this step of `total`."""
        if self.is_derived:
            due = step - self.last >= self.every or step == 1
        else:
            due = step % self.every == 0
        return self.write(step) if due or step == total else False

    def write(self, step: int) -> bool:
        """One is written after this step. -> True"""
        self.last = step
        return True

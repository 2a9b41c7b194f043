"""What a run writes besides its metrics: adapters, rollouts, checkpoints, in a thread; and after
which steps a checkpoint."""

import copy
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from unslothrl.checkpoints.store import Ahead, RunState
from unslothrl.errors import ProcessLost, RunError
from unslothrl.records import Group
from unslothrl.tracking import run_folder
from unslothrl.tracking.metrics import is_number
from unslothrl.tracking.report.page import write_report
from unslothrl.tracking.rows import evaluation_rows, rollout_rows
from unslothrl.training.metrics import Pieces, Trace
from unslothrl.weights.adapter import Adapter

MOST_WAITING = 4  # calls; the loop waits when there are more, because their arguments take memory
SHARE = 0.02  # of a run's time that checkpoints may take, where the user does not say how often
KEPT = 5  # checkpoints whose seconds are remembered
REPORT_S, REPORT_SHARE = 15.0, 0.01  # between two reports, and of a run's time for all of them


@dataclass(frozen=True)
class Boundary:
    """After a step, or before the first."""

    state: RunState  # which nobody changes any more
    learner: Callable[[], bytes]  # what `Learner.save_state` gives, in any thread; RunError
    ahead: tuple[Ahead, ...]  # drawn for later steps, and complete

    @classmethod
    def of(
        cls, state: RunState, learner: Callable[[], bytes], ahead: Sequence[Ahead] = ()
    ) -> "Boundary":
        return cls(copy.deepcopy(state), learner, tuple(ahead))

    @property
    def is_best(self) -> bool:
        """Whether the evaluation after this step is the best of the run so far."""
        evals = self.state.evals or []
        return bool(evals) and evals[-1]["step"] == self.state.step and best(evals) is evals[-1]


def best(evals: list[dict]) -> dict:
    """The first of those with the highest pass@1 of the newest one's first set: a run may go on
    with other sets. The newest where there is no such figure."""
    key = next((name for name in evals[-1] if name.endswith("/pass@1")), "")
    rated = [one for one in evals if is_number(one.get(key))]
    return max(rated, key=lambda one: one[key]) if rated else evals[-1]


@dataclass(eq=False)
class Saving:
    """Writes in a thread, in order. An error comes out of a later call, or of `wait`."""

    folder: run_folder.RunFolder
    pieces: Pieces | None = None
    note: Callable[[str], None] = lambda line: None  # of a report that cannot be written: no stop
    checkpoint_every: int | None = None
    keep_rollouts: int | None = None  # of the newest steps; None: of all
    saved: Boundary | None = None  # the newest checkpoint's, of those written here
    report_at: float = 0.0  # by the monotonic clock, when the next one is due
    saves_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))  # of checkpoints
    checkpoint_at: float = -math.inf  # by the same clock, when the last one was asked for

    def __post_init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self.waiting: deque[Future] = deque()

    def rollouts(self, step: int, groups: Sequence[Group], trace: Trace | None = None) -> None:
        """Every completion of a step, with what was trained on marked."""
        self.run(self._write_rollouts, step, groups, trace)

    def _write_rollouts(self, step: int, groups: Sequence[Group], trace: Trace | None) -> None:
        self.folder.write_rows(run_folder.ROLLOUTS, step, list(rollout_rows(groups)))
        if trace and self.pieces:
            with run_folder.noting_errors(self.note):
                run_folder.write_tokens(self.folder, step, trace.tokens(self.pieces))

    def report(self, is_due: bool) -> None:
        """Writes the page, where it is not due yet only if enough time has passed."""
        if is_due or time.monotonic() >= self.report_at:
            self.report_at = math.inf  # not another one while this waits
            self.run(self._write_report)

    def _write_report(self) -> None:
        started = time.monotonic()
        with run_folder.noting_errors(self.note):
            write_report(self.folder)
        ended = time.monotonic()
        self.report_at = ended + max(REPORT_S, (ended - started) / REPORT_SHARE)

    def evaluation(self, step: int, drawn: Mapping[str, Sequence[Group]]) -> None:
        self.run(self.folder.write_rows, run_folder.EVALS, step, evaluation_rows(drawn))
        self.run(self.folder.saved)

    def adapter(self, adapter: Adapter) -> None:
        self.run(self.folder.save_adapter, adapter)
        self.run(self.folder.saved)

    def checkpoint(self, boundary: Boundary) -> None:
        self.checkpoint_at = time.monotonic()
        self.run(self._write_checkpoint, boundary)

    def _write_checkpoint(self, boundary: Boundary) -> None:
        try:
            learner = boundary.learner()
        except RunError as error:
            if not isinstance(error, ProcessLost):  # which the loop notices
                self.note(f"step {boundary.state.step} has no checkpoint: {error}")
            return
        started = time.perf_counter()
        self.folder.checkpoints.write(boundary.state, learner, boundary.is_best, boundary.ahead)
        self.saved = boundary
        self.saves_s.append(time.perf_counter() - started)
        if self.keep_rollouts is not None:  # by the checkpoint: a run that goes on from it has them
            run_folder.delete_up_to(self.folder, boundary.state.step - self.keep_rollouts)
        self.folder.saved()

    def run(self, function: Callable, *arguments: Any) -> None:
        """Queues a call. Waits for the oldest one while `MOST_WAITING` are unfinished."""
        while self.waiting and (self.waiting[0].done() or len(self.waiting) >= MOST_WAITING):
            self.waiting.popleft().result()
        self.waiting.append(self.thread.submit(function, *arguments))

    def wait(self) -> None:
        while self.waiting:
            self.waiting.popleft().result()

    def is_checkpoint_due(self, step: int, total: int) -> bool:
        """Every `checkpoint_every` steps, and after the last; where that is None, as often as takes
        at most `SHARE` of the time."""
        if self.checkpoint_every is None:
            save_s = statistics.median(self.saves_s or [0.0])
            due = time.monotonic() - self.checkpoint_at >= save_s / SHARE
        else:
            due = step % self.checkpoint_every == 0
        return due or step == total

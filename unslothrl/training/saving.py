"""What a run writes besides its metrics: adapters, rollouts, checkpoints, in a thread."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from unslothrl.errors import RunError
from unslothrl.policy_version import Adapter
from unslothrl.tracking.report.page import noting_errors, write_report
from unslothrl.tracking.report.rollout_data import delete_up_to, write_tokens
from unslothrl.tracking.rows import evaluation_rows, rollout_rows
from unslothrl.tracking.run_folder import RunFolder, step_name
from unslothrl.training.background import Background
from unslothrl.training.boundary import Boundary
from unslothrl.training.checkpoint_schedule import CheckpointSchedule
from unslothrl.training.credit import Selected
from unslothrl.training.group_source import StepGroups
from unslothrl.training.pieces import Pieces
from unslothrl.training.tracing import Trace
from unslothrl.types import Group


class Saving:
    """Writes in the order in which it was asked to. An error comes out of a later call."""

    def __init__(
        self,
        folder: RunFolder,
        pieces: Pieces | None = None,
        note: Callable[[str], None] = lambda line: None,
        checkpoint_every: int | None = None,
        keep_rollouts: int | None = None,
    ):
        """`note` gets a line where the report cannot be written, which is no reason to stop.
        `keep_rollouts`: of the newest steps; None: of all."""
        self.folder, self.background = folder, Background()
        self.keep_rollouts = keep_rollouts
        self.pieces, self.note = pieces, note
        self.schedule = CheckpointSchedule(checkpoint_every, note)
        self.saved: Boundary | None = None  # the newest checkpoint's, of those written here

    def trace(self, selected: Selected, groups: StepGroups, is_traced: bool) -> Trace | None:
        """What is to be asked of the learners for the report, in a step that is traced."""
        return Trace(selected, groups.left_out) if is_traced and self.pieces else None

    def rollouts(
        self, step: int, groups: StepGroups, selected: Selected, trace: Trace | None = None
    ) -> None:
        """Every completion of a step, with what was trained on marked."""
        self.background.run(self._write_rollouts, step, groups, selected, trace)

    def _write_rollouts(
        self, step: int, groups: StepGroups, selected: Selected, trace: Trace | None
    ) -> None:
        trained = rollout_rows(selected.groups, selected.advantages, selected.chosen)
        rows = [*trained, *rollout_rows(groups.left_out)]
        self.folder.write_rollouts(step, rows)
        if trace and self.pieces:
            with noting_errors(self.note):
                write_tokens(self.folder, step, trace.tokens(self.pieces))

    def report(self) -> None:
        """The page of the run so far."""
        self.background.run(self._write_report)

    def _write_report(self) -> None:
        with noting_errors(self.note):
            write_report(self.folder)

    def evaluation(self, step: int, drawn: Mapping[str, Sequence[Group]]) -> None:
        """Every completion of an evaluation, by set."""
        self.background.run(self.folder.write_evaluation, step_name(step), evaluation_rows(drawn))
        self.background.run(self.folder.saved)

    def adapter(self, adapter: Adapter) -> None:
        self.background.run(self.folder.save_adapter, adapter)
        self.background.run(self.folder.saved)

    def last_adapter(self, newest: Callable[[], Adapter]) -> Path:
        """Writes the newest version when all else is on disk. -> its folder."""
        self.background.wait()
        return self.folder.save_adapter(newest())

    def checkpoint(self, boundary: Boundary) -> None:
        self.background.run(self._write_checkpoint, boundary)

    def _write_checkpoint(self, boundary: Boundary) -> None:
        try:
            learner = boundary.learner()
        except RunError:  # it has died: the loop notices
            return
        started = time.perf_counter()
        self.folder.checkpoints.write(boundary.state, learner, boundary.is_best, boundary.ahead)
        self.saved = boundary
        self.schedule.saved(time.perf_counter() - started)
        if self.keep_rollouts is not None:  # by the checkpoint: a run that goes on from it has them
            delete_up_to(self.folder, boundary.state.step - self.keep_rollouts)
        self.folder.saved()

    def wait(self) -> None:
        """Returns when everything is written."""
        self.background.wait()

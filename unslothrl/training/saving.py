"""What a run writes besides its metrics: adapters, rollouts, checkpoints, in a thread."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from unslothrl.checkpoints import run_state
from unslothrl.checkpoints.run_state import RunState
from unslothrl.tracking.run_folder import RunFolder, evaluation_rows, rollout_rows, step_name
from unslothrl.training.background import Background
from unslothrl.training.credit import Selected
from unslothrl.training.group_source import StepGroups
from unslothrl.types import Adapter, Group


class Saving:
    """Writes in the order in which it was asked to. An error comes out of a later call."""

    def __init__(self, folder: RunFolder):
        self.folder, self.background = folder, Background()

    def rollouts(self, step: int, groups: StepGroups, selected: Selected) -> None:
        """Every completion of a step, with what was trained on marked."""
        self.background.run(self._write_rollouts, step, groups, selected)

    def _write_rollouts(self, step: int, groups: StepGroups, selected: Selected) -> None:
        trained = rollout_rows(selected.groups, selected.advantages, selected.chosen)
        self.folder.write_rollouts(step, [*trained, *rollout_rows(groups.left_out)])

    def evaluation(self, step: int, drawn: Mapping[str, Sequence[Group]]) -> None:
        """Every completion of an evaluation, by set."""
        self.background.run(self.folder.write_evaluation, step_name(step), evaluation_rows(drawn))

    def adapter(self, adapter: Adapter) -> None:
        self.background.run(self.folder.save_adapter, adapter)

    def last_adapter(self, newest: Callable[[], Adapter]) -> Path:
        """Writes the newest version when all else is on disk. -> its folder."""
        self.background.wait()
        return self.folder.save_adapter(newest())

    def checkpoint(self, state: RunState, learner: bytes) -> None:
        """`learner` is what `LearnerGroup.save_state` gave for the same step."""
        self.background.run(self._write_checkpoint, copy.deepcopy(state), learner)

    def _write_checkpoint(self, state: RunState, learner: bytes) -> None:
        with self.folder.checkpoint_dir(state.step) as temporary:
            run_state.save(temporary, state, learner)

    def wait(self) -> None:
        """Returns when everything is written."""
        self.background.wait()

"""The run as it is between two steps, from which it can go on exactly."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unslothrl.checkpoints.run_state import Ahead, RunState
from unslothrl.tracking.metrics import is_number


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

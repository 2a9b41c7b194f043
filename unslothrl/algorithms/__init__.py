"""The maths, as pure functions: advantages, selection, losses. A learner is one of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unslothrl.algorithms import advantages, losses, selection


@dataclass(frozen=True)
class Objective:
    """What `--learner` names."""

    advantages: Callable[[Sequence[float]], list[float]]
    loss: Callable[..., losses.Loss]


OBJECTIVES = {
    "pg": Objective(advantages.centred, losses.pg),
    "grpo": Objective(advantages.standardised, losses.grpo),
}

__all__ = ["OBJECTIVES", "Objective", "advantages", "losses", "selection"]

"""An objective is a choice for each of a few independent parts. No torch here: every process reads
it, and `config` fills from it what the user did not set.

The loss of a batch, summed over the tokens of the chosen candidates by the aggregation:

    correction_t * clip(ratio_t, A_t) + kl_coefficient * k_t - entropy_coefficient * H_t
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Objective:
    """Every part is a name that its file knows, or a number; four may be functions, see `parts`."""

    advantage: str | Callable[..., Any] = "standardised"  # advantages.py, or gae
    advantage_std: str = "population"  # or sample, which divides by n - 1
    advantage_epsilon: float = 1e-8  # added to the standard deviation
    ratio: str | Callable[..., Any] = "token"  # ratios.py
    clip: str | Callable[..., Any] = "surrogate"  # clipping.py
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_dual: float = 0.0  # 0: off
    skip_threshold: float = 0.0  # mean ratio over which a sequence is left out; 0: off
    aggregation: str | Callable[..., Any] = "sequence"  # aggregation.py
    kl: str = "none"  # or loss, reward
    kl_estimator: str = "k3"  # divergence.py
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.0
    correction: str = "truncated"  # corrections.py
    correction_low: float | None = None  # its bounds; None: the usual ones
    correction_high: float | None = None
    mask_truncated: bool = False  # leave truncated completions out of the loss
    overlong: bool = False  # punish completions softly as they near the limit
    filter_low: float = 0.0  # group accuracies that are kept
    filter_high: float = 1.0
    max_resample: int = 0  # times that prompts are drawn again for those filtered out

    @property
    def has_critic(self) -> bool:
        return self.advantage == "gae"

    @property
    def compares_candidates(self) -> bool:
        """Whether an advantage needs siblings."""
        return not self.has_critic

    @property
    def trains_without_advantage(self) -> bool:
        """Whether samples with advantage zero still have a gradient."""
        return self.has_critic or self.kl == "loss" or self.entropy_coefficient != 0

"""How much better a candidate is than its siblings.

    centred        A_i = R_i - mean(R)                         REINFORCE with a group baseline
    standardised   A_i = (R_i - mean(R)) / (std(R) + epsilon)  GRPO, arXiv 2402.03300, section 4.1.2

mean and std run over the whole group, before any selection; std is that of the population
(divided by n; TRL divides by n - 1). A group whose rewards are all equal has no signal: its
advantages are exactly zero, not rounding noise.
"""

import math
from collections.abc import Sequence

EPSILON = 1e-8


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether the group prefers any candidate over another."""
    return max(rewards) > min(rewards)


def centred(rewards: Sequence[float]) -> list[float]:
    """[candidates] rewards -> [candidates] advantages that sum to zero."""
    if not has_signal(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def standardised(rewards: Sequence[float], epsilon: float = EPSILON) -> list[float]:
    """[candidates] rewards -> [candidates] advantages of mean 0 and standard deviation 1."""
    differences = centred(rewards)
    std = math.sqrt(math.fsum(d * d for d in differences) / len(differences))
    return [difference / (std + epsilon) for difference in differences]

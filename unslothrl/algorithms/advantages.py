"""How much better a candidate is than its siblings: rewards of a batch of groups -> advantages.

    centred             A_i = R_i - mean(R)                           REINFORCE, a group baseline
    standardised        A_i = (R_i - mean(R)) / (std(R) + epsilon)    GRPO, arXiv 2402.03300, 4.1.2
    batch_standardised  A_i = (R_i - mean(R)) / (std_batch + epsilon)
                        std_batch of all R_i - mean(R) of the batch   REINFORCE++ with baseline,
                                                                      arXiv 2501.03262
    leave_one_out       A_i = R_i - mean of the other R_j             RLOO, arXiv 2402.14740
                            = n / (n - 1) (R_i - mean(R))

mean and std run over the whole group, before any selection (max_variance alone changes that, see
`selection`). std divides by n - ddof: 0 is the population's, 1 the sample's (TRL's, with epsilon
1e-4). A group whose rewards are all equal, or that has one candidate, has no signal: its advantages
are exactly zero, not rounding noise. The group-centred advantages of a batch have mean zero
already, so batch_standardised takes no second mean off. Its statistics count completions; OpenRLHF
counts their tokens.

Generalised advantage estimation, which needs a critic, is in `gae`.
"""

import math
from collections.abc import Callable, Sequence

EPSILON = 1e-8

Groups = Sequence[Sequence[float]]  # [groups][candidates] rewards
Advantages = list[list[float]]  # [groups][candidates]


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether the group prefers any candidate over another."""
    return len(set(rewards)) > 1


def centred(groups: Groups, *, ddof: int = 0, epsilon: float = EPSILON) -> Advantages:
    """Advantages that sum to zero in every group."""
    return [_differences(rewards) for rewards in groups]


def standardised(groups: Groups, *, ddof: int = 0, epsilon: float = EPSILON) -> Advantages:
    """Advantages of mean 0 and standard deviation 1 in every group."""
    return [
        _divided(differences, _std(differences, ddof) + epsilon)
        for differences in map(_differences, groups)
    ]


def batch_standardised(groups: Groups, *, ddof: int = 0, epsilon: float = EPSILON) -> Advantages:
    """Advantages of mean 0 in every group and standard deviation 1 in the batch."""
    differences = centred(groups)
    std = _std([d for group in differences for d in group], ddof)
    return [_divided(group, std + epsilon) for group in differences]


def leave_one_out(groups: Groups, *, ddof: int = 0, epsilon: float = EPSILON) -> Advantages:
    """Every candidate against the mean of the others."""
    return [
        [d * len(differences) / max(1, len(differences) - 1) for d in differences]
        for differences in map(_differences, groups)
    ]


def _differences(rewards: Sequence[float]) -> list[float]:
    if not has_signal(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def _divided(differences: Sequence[float], by: float) -> list[float]:
    """A difference of zero stays zero, whatever it is divided by."""
    return [d / by if d else 0.0 for d in differences]


def _std(differences: Sequence[float], ddof: int) -> float:
    """Of values whose mean is zero."""
    return math.sqrt(math.fsum(d * d for d in differences) / max(1, len(differences) - ddof))


ADVANTAGES: dict[str, Callable[..., Advantages]] = {
    "centred": centred,
    "standardised": standardised,
    "batch_standardised": batch_standardised,
    "leave_one_out": leave_one_out,
}

"""How much better a candidate is than its siblings: rewards of a batch of groups -> advantages.

    centred             A_i = R_i - mean(R)                           REINFORCE, a group baseline
    standardised        A_i = (R_i - mean(R)) / (std(R) + epsilon)    GRPO, arXiv 2402.03300, 4.1.2
    batch_standardised  A_i = (R_i - mean(R)) / (std_batch + epsilon)
                        std_batch of all R_i - mean(R) of the batch   REINFORCE++ with baseline,
                                                                      arXiv 2501.03262
    leave_one_out       A_i = R_i - mean of the other R_j             RLOO, arXiv 2402.14740
                            = n / (n - 1) (R_i - mean(R))

mean and std run over the whole group, before any selection (max_variance alone changes that, see
below). std divides by n - ddof: 0 is the population's, 1 the sample's (TRL's, with epsilon
1e-4). A group whose rewards are all equal, or that has one candidate, has no signal: its advantages
are exactly zero, not rounding noise. The group-centred advantages of a batch have mean zero
already, so batch_standardised takes no second mean off. Its statistics count completions; OpenRLHF
counts their tokens.

With a critic, generalised advantage estimation (arXiv 1506.02438, equations 11 and 16), for ppo:

    delta_t = r_t + gamma V_{t+1} - V_t        V after the last token is 0: an episode ends there
    A_t     = delta_t + gamma lambda A_{t+1}
    R_t     = A_t + V_t                        what the critic learns to predict

V_t is the critic's value of the state before token t. The completion's reward stands at its last
token; with KL in the reward every token has its own share (see `divergence`). A truncated
completion ends like any other: there is no bootstrapping from its last state. These advantages are
whitened over all tokens of the batch before the policy sees them (arXiv 2403.17031), the returns
are not.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

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
    each.__name__: each for each in (centred, standardised, batch_standardised, leave_one_out)
}


def gae(
    rewards: np.ndarray,  # [tokens] of one completion
    values: np.ndarray,  # [tokens]
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[np.ndarray, np.ndarray]:
    """-> (advantages, returns), each [tokens], float64."""
    values = np.asarray(values, np.float64)
    following = np.append(values[1:], 0.0)
    deltas = np.asarray(rewards, np.float64) + gamma * following - values
    advantages, running = np.zeros(len(deltas)), 0.0
    for t in reversed(range(len(deltas))):
        running = deltas[t] + gamma * lam * running
        advantages[t] = running
    return advantages, advantages + values


def whiten(parts: Sequence[np.ndarray], epsilon: float = 1e-8) -> list[np.ndarray]:
    """Every completion's [tokens], shifted and scaled to mean 0 and std 1 over all of them."""
    if not any(map(len, parts)):
        return list(parts)
    together = np.concatenate(parts)
    mean, std = together.mean(), together.std()
    return [(part - mean) / (std + epsilon) for part in parts]


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant one."""
    spread = float(np.var(returns))
    return 1.0 - float(np.var(returns - values)) / spread if spread > 0 else 0.0

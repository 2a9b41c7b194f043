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

Which candidates of a group the learner trains on (`SELECTIONS`: rewards of one group -> k indices)
is decided by the seed where rewards are equal or some are drawn. topk is DistRL-LLM's rule,
max_variance arXiv 2504.13818, where advantages are of the chosen alone. docs/algorithms.md says
when each helps, and what was measured.

Which groups, for dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): one is kept when its
accuracy, the mean score of its candidates, lies in [low, high], and its rewards differ: with 1e-6
to 1 - 1e-6 that leaves out what every candidate solves or none does. Where a custom reward gives
scores that are not from 0 to 1 (1 and -1, or 2 and 0), their mean is no accuracy: such a group is
kept when its rewards differ. The loop draws other prompts in place of those left out, at most
`max_resample` times, so that the batch is full of groups that have something to teach. An objective
that filters nothing keeps every group, also one without signal: it adds nothing to the gradient,
but it counts in the denominators, as in GRPO.
"""

import itertools
import math
import random
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


Choice = Callable[[Sequence[float], int, int], list[int]]


def topk(rewards: Sequence[float], k: int, seed: int) -> list[int]:
    """[candidates] rewards -> the indices of the k highest, in candidate order."""
    return sorted(ascending(rewards, seed)[max(0, len(rewards) - k) :])


def max_variance(rewards: Sequence[float], k: int, seed: int) -> list[int]:
    """The best of the k + 1 ways to take some of the lowest and the rest of the highest.

    O(n log n): sums of any such subset follow from prefix sums (the paper's algorithm 1).
    """
    order, n = ascending(rewards, seed), len(rewards)
    if k >= n:
        return list(range(n))
    mean = sum(rewards) / n  # taken off first, so that large equal rewards do not cancel
    values = [rewards[i] - mean for i in order]
    sums = [0.0, *itertools.accumulate(values)]
    squares = [0.0, *itertools.accumulate(v * v for v in values)]

    def spread(low: int) -> float:
        """k times the variance of the `low` lowest and the k - low highest."""
        top = n - (k - low)
        total = sums[low] + sums[n] - sums[top]
        return squares[low] + squares[n] - squares[top] - total * total / k

    low = max(range(k + 1), key=spread)
    return sorted(order[:low] + order[n - (k - low) :])


def balanced(rewards: Sequence[float], k: int, seed: int) -> list[int]:
    """As many above the mean as not, as far as there are; the rest from whatever is left."""
    mean = sum(rewards) / len(rewards)
    order = list(range(len(rewards)))
    random.Random(seed).shuffle(order)
    above = [i for i in order if rewards[i] > mean]
    others = [i for i in order if rewards[i] <= mean]
    half = k // 2
    first = above[: k - half] + others[:half]
    rest = above[k - half :] + others[half:]
    return sorted([*first, *rest][:k])


def drawn(rewards: Sequence[float], k: int, seed: int) -> list[int]:
    """k of them, each as likely as the others."""
    return sorted(random.Random(seed).sample(range(len(rewards)), min(k, len(rewards))))


def ascending(rewards: Sequence[float], seed: int) -> list[int]:
    """Indices by reward, ties in an order that the seed decides."""
    draw = random.Random(seed)
    return [index for _, _, index in sorted((r, draw.random(), i) for i, r in enumerate(rewards))]


SELECTIONS: dict[str, Choice] = {
    "topk": topk,
    "max_variance": max_variance,
    "balanced": balanced,
    "random": drawn,
    "all": lambda rewards, k, seed: list(range(len(rewards))),
}
ON_SUBSET = {"max_variance"}  # advantages come from the chosen alone


def keeps(
    rewards: Sequence[float],  # [candidates]
    scores: Sequence[float],  # [candidates]
    low: float,
    high: float,
) -> bool:
    if not has_signal(rewards):
        return False
    if min(scores) < 0 or max(scores) > 1:
        return True
    return low <= math.fsum(scores) / len(scores) <= high


def how_many_to_draw(missing: int, kept: int, drawn: int, at_most: int) -> int:
    """Prompts to draw next, so that by the share kept so far `missing` of them are."""
    if kept == 0:
        return at_most
    return min(at_most, math.ceil(missing * drawn / kept))

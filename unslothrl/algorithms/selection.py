"""Which candidates of a group the learner trains on, and which groups of a batch.

Of candidates, `SELECTIONS` takes rewards of one group -> k indices; where rewards are equal or some
are drawn, the seed decides. topk is DistRL-LLM's rule, max_variance arXiv 2504.13818, where
advantages are of the chosen alone. docs/algorithms.md says when each helps, and what was measured.

Of groups, for dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): one is kept when its
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

from unslothrl.algorithms.advantages import has_signal

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

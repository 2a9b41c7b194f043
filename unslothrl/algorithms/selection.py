"""Which candidates of a group the learner trains on: rewards of one group -> k indices.

    topk          the k highest rewards (DistRL-LLM's rule). Pushes only upwards: the mean advantage
                  of the selected is positive, which `train/selected_advantage_mean` shows
    max_variance  the k whose rewards have the largest variance, arXiv 2504.13818: always some of
                  the lowest and some of the highest. Advantages are then computed on these k alone
    balanced      k / 2 drawn from those above the group's mean, as many from the others
    random        k drawn
    all           every candidate, whatever k

Ties, and everything drawn, are decided by the seed. Except for max_variance the advantages come
from the whole group first, so the choice changes which samples are seen, not what they are worth.
docs/algorithms.md says when each helps, and what was measured.
"""

import itertools
import random
from collections.abc import Callable, Sequence

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


def everything(rewards: Sequence[float], k: int, seed: int) -> list[int]:
    return list(range(len(rewards)))


def ascending(rewards: Sequence[float], seed: int) -> list[int]:
    """Indices by reward, ties in an order that the seed decides."""
    draw = random.Random(seed)
    return [index for _, _, index in sorted((r, draw.random(), i) for i, r in enumerate(rewards))]


SELECTIONS: dict[str, Choice] = {
    "topk": topk,
    "max_variance": max_variance,
    "balanced": balanced,
    "random": drawn,
    "all": everything,
}
ON_SUBSET = {"max_variance"}  # advantages come from the chosen alone

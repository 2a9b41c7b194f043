"""How far two sets of log-probabilities of the same tokens are apart.

Estimates of KL(policy || reference) from the policy's own samples (Schulman 2020,
http://joschu.net/blog/kl-approx.html), d = log pi - log pi_ref of the sampled token:

    k1 = d                   unbiased, of either sign
    k2 = d^2 / 2             biased, low variance; in the loss its gradient is that of the KL
    k3 = exp(-d) - 1 + d     unbiased, never negative; GRPO, arXiv 2402.03300, equation 4

In the reward (kl reward) the estimate is a number without gradient: reward_t - beta k. There
only k1 has the gradient of the KL, E[d grad log pi]; that of k2 and k3 vanishes near the reference,
so k1 is what a run takes unless another is named. In the
loss (kl loss) its gradient is taken: k1's there has mean zero, so it does not hold the policy
(use k2 or k3). The reference is the base with the adapter off, or the adapter that the run started
from.

What they say of sampler and learner about the health of a step:

gap  mean and 99th percentile of |sampler - learner| over tokens, before any update
ess  (sum w)^2 / (n sum w^2), w = exp(learner - sampler): the share of the tokens that importance
     weights would leave effective (Kong 1992), 1 when both agree
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from unslothrl.records import Update

if TYPE_CHECKING:  # the driver estimates with NumPy alone
    import torch

Array = TypeVar("Array", "torch.Tensor", np.ndarray)


def k1(d: Array) -> Array:
    """[tokens] log-ratios policy - reference -> [tokens]."""
    return d


def k2(d: Array) -> Array:
    return d * d / 2


def k3(d: Array) -> Array:
    """exp(-d) - 1 + d, by expm1 so that small d keep their digits."""
    return (np.expm1(-d) if isinstance(d, np.ndarray) else (-d).expm1()) + d


ESTIMATORS: dict[str, Callable] = {"k1": k1, "k2": k2, "k3": k3}


def by_source(part: Update) -> dict[tuple[str, int], tuple[int, float, float]]:
    """(generator, version) -> its tokens, their gaps summed, and the gaps' squares summed."""
    sampled = [source for source in part.sources if source[2]]
    begins = np.cumsum([0, *(tokens for *_, tokens in sampled)])[:-1]
    gap = np.abs(part.difference)
    sums = np.add.reduceat(gap, begins).tolist()
    squares = np.add.reduceat(gap * gap, begins).tolist()
    found: dict[tuple[str, int], tuple[int, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))
    for (generator, version, tokens), gaps, squared in zip(sampled, sums, squares, strict=True):
        before = found[generator, version]
        found[generator, version] = (before[0] + tokens, before[1] + gaps, before[2] + squared)
    return dict(found)


def sampler_agreement(updates: Sequence[Sequence[Update]]) -> dict[str, float]:
    """The `train/` metrics of a step: of each of its updates, what every learner has found. The
    percentile is the mean of those of the updates."""
    parts = [part for update in updates for part in update]
    tokens = sum(part.tokens for part in parts)
    weights = [np.exp(np.clip(part.difference, -50, 50)) for part in parts]
    square = sum(float((each * each).sum()) for each in weights)
    gaps = [np.abs(np.concatenate([part.difference for part in update])) for update in updates]
    return {
        "train/sampler_gap": sum(float(np.abs(part.difference).sum()) for part in parts) / tokens,
        "train/sampler_gap_p99": float(np.mean([np.percentile(each, 99) for each in gaps])),
        "train/ess": sum(float(each.sum()) for each in weights) ** 2 / (tokens * square),
    }

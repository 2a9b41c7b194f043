"""What the log-probabilities say about the health of a step.

gap  mean and 99th percentile of |sampler - learner| over tokens, before any update
ess  (sum w)^2 / (n sum w^2), w = exp(learner - sampler): the share of the tokens that importance
     weights would leave effective (Kong 1992), 1 when both agree
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from unslothrl.records import Update


def by_source(part: Update) -> dict[tuple[str, int], tuple[int, float, float]]:
    """(generator, version) -> its tokens, their gaps summed, and the gaps' squares summed."""
    sampled = [source for source in part.sources if source[2]]
    if not sampled:
        return {}
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

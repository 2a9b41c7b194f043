"""What the log-probabilities say about the health of a step.

gap  mean and 99th percentile of |sampler - learner| over tokens, before any update
ess  (sum w)^2 / (n sum w^2), w = exp(learner - sampler): the share of the tokens that importance
     weights would leave effective (Kong 1992), 1 when both agree

A learner compares its part of a batch, and hands over sums and the gaps.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from unslothrl.records import Agreement

Source = tuple[str, int, int]
"""Of a sample: its generator, the policy version it was drawn under, its sampled tokens."""


def agreement(sampler: np.ndarray, learner: np.ndarray, sources: Sequence[Source]) -> Agreement:
    """Compares two [tokens] arrays of log-probabilities of the samples that `sources` describes, in
    their order."""
    difference = learner.astype(np.float64)
    difference -= sampler
    gaps = np.abs(difference)
    weights = np.exp(np.clip(difference, -50, 50, out=difference), out=difference)
    total = float(weights.sum())
    weights *= weights
    return Agreement(
        tokens=len(gaps),
        gap=float(gaps.sum()),
        weight=total,
        square=float(weights.sum()),
        gaps=gaps,
        sources=by_source(gaps, sources),
    )


def by_source(
    gap: np.ndarray, sources: Sequence[Source]
) -> dict[tuple[str, int], tuple[int, float, float]]:
    """See `Agreement.sources`."""
    sampled = [source for source in sources if source[2]]
    if not sampled:
        return {}
    begins = np.cumsum([0, *(tokens for *_, tokens in sampled)])[:-1]
    sums = np.add.reduceat(gap, begins).tolist()
    squares = np.add.reduceat(gap * gap, begins).tolist()
    found: dict[tuple[str, int], tuple[int, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))
    for (generator, version, tokens), gaps, squared in zip(sampled, sums, squares, strict=True):
        before = found[generator, version]
        found[generator, version] = (before[0] + tokens, before[1] + gaps, before[2] + squared)
    return dict(found)


def sampler_agreement(updates: Sequence[Sequence[Agreement]]) -> dict[str, float]:
    """The `train/` metrics of a step: of each of its updates, what every learner has found. The
    percentile is the mean of those of the updates."""
    parts = [part for update in updates for part in update]
    tokens = sum(part.tokens for part in parts)
    square = sum(part.square for part in parts)
    gaps = [np.concatenate([part.gaps for part in update]) for update in updates]
    return {
        "train/sampler_gap": sum(part.gap for part in parts) / tokens,
        "train/sampler_gap_p99": float(np.mean([np.percentile(each, 99) for each in gaps])),
        "train/ess": sum(part.weight for part in parts) ** 2 / (tokens * square),
    }

"""What the log-probabilities say about the health of a step.

gap  mean and 99th percentile of |sampler - learner| over tokens, before any update
ess  (sum w)^2 / (n sum w^2), w = exp(learner - sampler): the share of the tokens that importance
     weights would leave effective (Kong 1992), 1 when both agree

A learner compares its part of a batch, and hands over sums: the arrays of a large batch would take
the driver longer than the update takes many learners.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from unslothrl.records import Agreement

PERCENT = 99
Source = tuple[str, int, int]
"""Of a sample: its generator, the policy version it was drawn under, its sampled tokens."""


def agreement(
    sampler: np.ndarray, learner: np.ndarray, sources: Sequence[Source], batch_tokens: int
) -> Agreement:
    """Compares two [tokens] arrays of log-probabilities of the samples that `sources` describes, in
    their order; `batch_tokens` are those of all parts."""
    difference = learner.astype(np.float64)
    difference -= sampler
    gap = np.abs(difference)
    weights = np.exp(np.clip(difference, -50, 50, out=difference), out=difference)
    total = float(weights.sum())
    weights *= weights
    summed, of_sources = float(gap.sum()), by_source(gap, sources)
    largest = above(batch_tokens)
    if largest < len(gap):
        gap.partition(len(gap) - largest)
    return Agreement(
        tokens=len(gap),
        gap=summed,
        weight=total,
        square=float(weights.sum()),
        largest=gap[max(0, len(gap) - largest) :].copy(),
        sources=of_sources,
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
    return {
        "train/sampler_gap": sum(part.gap for part in parts) / tokens,
        "train/sampler_gap_p99": float(np.mean([percentile(update) for update in updates])),
        "train/ess": sum(part.weight for part in parts) ** 2 / (tokens * square),
    }


def above(tokens: int) -> int:
    """How many of so many values `np.percentile` needs, from the largest down."""
    return tokens - int(PERCENT / 100 * (tokens - 1)) if tokens else 0


def percentile(parts: Sequence[Agreement]) -> float:
    """`np.percentile` of an update's gaps, to the last bit."""
    tokens = sum(part.tokens for part in parts)
    largest = np.sort(np.concatenate([part.largest for part in parts]))[-above(tokens) :]
    rank = PERCENT / 100 * (tokens - 1)
    share = rank - int(rank)
    low, high = largest[0], largest[min(1, len(largest) - 1)]
    if np.isnan(largest[-1]):
        return float("nan")
    # From the nearer of the two, as NumPy does.
    return float(low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share))

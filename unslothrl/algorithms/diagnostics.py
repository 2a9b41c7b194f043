"""What the log-probabilities say about the health of a step.

gap  mean and 99th percentile of |sampler - learner| over tokens, before any update
ess  (sum w)^2 / (n sum w^2), w = exp(learner - sampler): the share of the tokens that importance
     weights would leave effective (Kong 1992), 1 when both agree
"""

import numpy as np

P99 = 99 / 100

CHUNK = 1 << 15  # tokens, whose numbers stay in a core's cache
EVERY, MARGIN = 997, 0.01  # of the sample that says where the largest gaps begin


def sampler_agreement(sampler: np.ndarray, learner: np.ndarray) -> dict[str, float]:
    """Two [tokens] arrays of log-probabilities -> the `train/` metrics that compare them."""
    tokens = len(learner)
    some = np.sort(_gaps(sampler[::EVERY], learner[::EVERY]))
    bound = some[int(len(some) * (P99 - MARGIN))]
    large: list[np.ndarray] = []
    gap, weight, square = _sums(sampler, learner, bound, large)
    largest = np.concatenate(large)
    if tokens - len(largest) > int(P99 * (tokens - 1)):  # the sample has misled
        largest = _gaps(sampler, learner)
    return {
        "train/sampler_gap": gap / tokens,
        "train/sampler_gap_p99": float("nan") if np.isnan(gap) else _p99(largest, tokens),
        "train/ess": weight**2 / (tokens * square),
    }


def _gaps(sampler: np.ndarray, learner: np.ndarray) -> np.ndarray:
    return np.abs(learner.astype(np.float64) - sampler)


def _sums(
    sampler: np.ndarray, learner: np.ndarray, bound: float, large: list[np.ndarray]
) -> tuple[float, float, float]:
    """-> the sums of gaps, of weights and of their squares; `large` gets the gaps from `bound` on.

    Arrays of many megabytes would be made for whole steps. They are halved as NumPy's pairwise sum
    halves them, so that the sums are the same to the last bit.
    """
    if len(learner) > CHUNK:
        half = len(learner) // 2
        half -= half % 8
        first = _sums(sampler[:half], learner[:half], bound, large)
        second = _sums(sampler[half:], learner[half:], bound, large)
        return first[0] + second[0], first[1] + second[1], first[2] + second[2]
    difference = learner.astype(np.float64)
    difference -= sampler
    gap = np.abs(difference)
    large.append(gap[gap >= bound])
    weights = np.exp(np.clip(difference, -50, 50, out=difference), out=difference)
    total = float(weights.sum())
    weights *= weights
    return float(gap.sum()), total, float(weights.sum())


def _p99(largest: np.ndarray, count: int) -> float:
    """As `np.percentile(values, 99)` of `count` values, of which the largest are given."""
    rank = P99 * (count - 1)
    lower = int(rank)
    place = lower - (count - len(largest))
    largest.partition(place)
    low, share = largest[place], rank - lower
    high = largest[place + 1 :].min() if place + 1 < len(largest) else low
    return float(low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share))

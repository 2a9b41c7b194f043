"""What the log-probabilities say about the health of a step.

gap  mean and 99th percentile of |sampler - learner| over tokens, before any update
ess  (sum w)^2 / (n sum w^2), w = exp(learner - sampler): the share of the tokens that importance
     weights would leave effective (Kong 1992), 1 when both agree
"""

import numpy as np


def sampler_agreement(sampler: np.ndarray, learner: np.ndarray) -> dict[str, float]:
    """Two [tokens] arrays of log-probabilities -> the `train/` metrics that compare them."""
    difference = learner.astype(np.float64) - sampler.astype(np.float64)
    gap = np.abs(difference)
    weights = np.exp(np.clip(difference, -50, 50))
    return {
        "train/sampler_gap": float(gap.mean()),
        "train/sampler_gap_p99": float(np.percentile(gap, 99)),
        "train/ess": float(weights.sum() ** 2 / (len(weights) * (weights**2).sum())),
    }

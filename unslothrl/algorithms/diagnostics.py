"""What the log-probabilities say about the health of a step.

gap        mean and 99th percentile of |sampler - learner| over tokens
ess        (sum w)^2 / (n sum w^2), w = exp(learner - sampler): the share of the tokens that
           importance weights would leave effective (Kong 1992), 1 when both agree
truncated  the share of tokens whose w exceeds the cap of truncated importance sampling
k3         exp(-d) + d - 1, d = policy - reference: an unbiased, never negative estimate of
           KL(policy || reference) from the policy's samples (Schulman 2020)
"""

import numpy as np

TRUNCATION = 2.0


def sampler_agreement(sampler: np.ndarray, learner: np.ndarray) -> dict[str, float]:
    """Two [tokens] arrays of log-probabilities -> the `train/` metrics that compare them."""
    difference = learner.astype(np.float64) - sampler.astype(np.float64)
    gap = np.abs(difference)
    weights = np.exp(np.clip(difference, -50, 50))
    return {
        "train/sampler_gap": float(gap.mean()),
        "train/sampler_gap_p99": float(np.percentile(gap, 99)),
        "train/ess": float(weights.sum() ** 2 / (len(weights) * (weights**2).sum())),
        "train/correction_truncated": float((weights > TRUNCATION).mean()),
    }


def k3(policy: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Two [tokens] arrays of log-probabilities -> [tokens] estimates of the divergence."""
    d = policy.astype(np.float64) - reference.astype(np.float64)
    return np.exp(-d) + d - 1

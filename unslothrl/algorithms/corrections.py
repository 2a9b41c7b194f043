"""Off-policy corrections: what a token's loss is multiplied by because another engine sampled it.

w_t = pi_old(o_t) / pi_sampler(o_t): the learner's own probability before any update, over what the
sampler reported. Both are data, so nothing here has a gradient. The sampler differs from the
learner by its kernels and roundings, and by older weights where rollouts lag behind.

    none
    truncated  min(w_t, high)                       high 2; truncated importance sampling
                                                    (Ionides 2008; Yao et al. 2025, "Your efficient
                                                    RL framework secretly brings you off-policy
                                                    training")
    masked     w_t if low <= w_t <= high else 0     0.5 to 5; IcePop (Ring-1T, arXiv 2510.18855)
    geometric  1 if low <= (prod_t w_t)^(1/|o|) <= high else 0, the whole sequence
                                                    0.99 to 1.01; the geometric sequence mask of Liu
                                                    et al. 2025, "When speed kills stability"

Denominators do not shrink with what is masked.
"""

from collections.abc import Sequence

import torch

from unslothrl.algorithms.aggregation import sequence_means, spread

BOUNDS = {"truncated": (0.0, 2.0), "masked": (0.5, 5.0), "geometric": (0.99, 1.01)}
CORRECTIONS = ("none", *BOUNDS)


def correction(
    kind: str,
    old: torch.Tensor,  # [tokens]
    sampler: torch.Tensor,  # [tokens]
    lengths: Sequence[int],  # [sequences]
    low: float | None = None,
    high: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> ([tokens] factors, [tokens] whether a bound acted). `low`, `high` None: the usual ones."""
    log_weights = (old - sampler).detach()
    if kind == "none":
        return torch.ones_like(log_weights), torch.zeros_like(log_weights, dtype=torch.bool)
    usual = BOUNDS[kind]
    low, high = usual[0] if low is None else low, usual[1] if high is None else high
    weights = log_weights.exp()
    if kind == "truncated":
        return weights.clamp(max=high), weights > high
    if kind == "masked":
        kept = (weights >= low) & (weights <= high)
        return torch.where(kept, weights, 0.0), ~kept
    means = spread(sequence_means(log_weights, lengths).exp(), lengths)
    kept = (means >= low) & (means <= high)
    return kept.to(log_weights.dtype), ~kept

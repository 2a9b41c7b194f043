"""From log-probabilities to the policy's loss, a token at a time: the ratio, the clip, and the
weight of what another engine sampled.

rho, the ratio of policy and old policy:

    token       rho_t = pi(o_t) / pi_old(o_t)                                PPO, GRPO
    sequence    s = (prod_t rho_t)^(1 / |o|), the same for all its tokens    GSPO, arXiv 2507.18071,
                                                                             equation 7
    trajectory  prod_t rho_t, the same for all its tokens                    RLOO (arXiv 2402.14740
                                                                             models a completion as
                                                                             one action)
    one         1, with the gradient of log pi                               REINFORCE

Both are the learner's own: what the sampler would have said enters by the correction, never here.
On the first update after a rollout pi is pi_old, and every ratio is exactly 1.

What of the ratio reaches the loss:

    surrogate  l = -min(rho A, clip(rho, 1 - low, 1 + high) A)       PPO, arXiv 1707.06347, eq. 7
               with dual > 0 and A < 0:  l = -max(that min, dual A)  dual clip, arXiv 1912.09729
    weight     l = -sg(min(max(rho, 1 - low), 1 + high)) A log pi    CISPO, arXiv 2506.13585, eq. 4
    none       l = -rho A

low and high differ in DAPO (clip-higher, arXiv 2503.14476). In `weight` no token loses its
gradient, only its weight is bounded; MiniMax bounds it above alone, which low = 1 gives: rho is
positive, so that bound never acts. dual bounds the loss of tokens with negative advantage whose
ratio has grown without limit.

Off-policy corrections multiply a token's loss because another engine sampled it. w_t = pi_old(o_t)
/ pi_sampler(o_t) is the learner's own probability before any update, over what the sampler
reported: both are data, without a gradient. The sampler differs from the learner by its kernels and
roundings, and by older weights where rollouts lag behind.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from unslothrl.algorithms.aggregation import sequence_means, spread

MOST = 80.0  # log of a product: exp(80) is a float32, and an infinite ratio has no gradient


def token(log_ratio: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[tokens] log pi - log pi_old, lengths [sequences] -> [tokens]."""
    return log_ratio.exp()


def sequence(log_ratio: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The geometric mean over each sequence."""
    return spread(sequence_means(log_ratio, lengths).exp(), lengths)


def trajectory(log_ratio: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The product over each sequence."""
    counts = torch.tensor(list(lengths), device=log_ratio.device, dtype=log_ratio.dtype)
    total = sequence_means(log_ratio, lengths) * counts
    return spread(total.clamp(max=MOST).exp(), lengths)


def one(log_ratio: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """1 + (log pi - the same, detached): its gradient is that of log pi, wherever pi_old is."""
    return 1 + (log_ratio - log_ratio.detach())


RATIOS: dict[str, Callable[[torch.Tensor, Sequence[int]], torch.Tensor]] = {
    "token": token,
    "sequence": sequence,
    "trajectory": trajectory,
    "one": one,
}


@dataclass(frozen=True)
class Clip:
    """How far rho may move: down to 1 - low, up to 1 + high; dual 0 is off, else over 1."""

    low: float = 0.2
    high: float = 0.2
    dual: float = 0.0


Terms = tuple[torch.Tensor, torch.Tensor]  # ([tokens] losses, [tokens] whether the clip acted)


def surrogate(
    ratio: torch.Tensor,  # [tokens]
    logprobs: torch.Tensor,  # [tokens]
    advantages: torch.Tensor,  # [tokens]
    clip: Clip,
) -> Terms:
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip.low, 1 + clip.high) * advantages
    value = torch.minimum(unclipped, clipped)
    acted = clipped < unclipped
    if clip.dual:
        floor = torch.where(advantages < 0, clip.dual * advantages, value.detach())
        acted |= (advantages < 0) & (value < floor)
        value = torch.where(advantages < 0, torch.maximum(value, floor), value)
    return -value, acted


def weight(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, clip: Clip
) -> Terms:
    ratio = ratio.detach()
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high)
    return -bounded * advantages * logprobs, bounded != ratio


def none(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, clip: Clip
) -> Terms:
    return -ratio * advantages, torch.zeros_like(advantages, dtype=torch.bool)


CLIPS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Clip], Terms]] = {
    "surrogate": surrogate,
    "weight": weight,
    "none": none,
}


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

"""What of the ratio reaches the policy's loss, a token at a time.

    surrogate  l = -min(rho A, clip(rho, 1 - low, 1 + high) A)       PPO, arXiv 1707.06347, eq. 7
               with dual > 0 and A < 0:  l = -max(that min, dual A)  dual clip, arXiv 1912.09729
    weight     l = -sg(min(max(rho, 1 - low), 1 + high)) A log pi    CISPO, arXiv 2506.13585, eq. 4
    none       l = -rho A

low and high differ in DAPO (clip-higher, arXiv 2503.14476). In `weight` no token loses its
gradient, only its weight is bounded; MiniMax bounds it above alone, which low = 1 gives: rho is
positive, so that bound never acts. dual bounds the loss of tokens with negative advantage whose
ratio has grown without limit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch


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

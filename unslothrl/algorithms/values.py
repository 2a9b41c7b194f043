"""The critic's loss, a token at a time (PPO with value clipping, arXiv 1707.06347 as OpenAI's and
most codes have it; arXiv 2403.17031).

    l_t = 1/2 max((V_t - R_t)^2, (clip(V_t, V_old_t - clip, V_old_t + clip) - R_t)^2)

R_t is the return (see `gae`), V_old the critic's value before the step's first update. clip 0 is
off.
"""

import torch


def value_terms(
    values: torch.Tensor,  # [tokens], with gradient
    old: torch.Tensor,  # [tokens]
    returns: torch.Tensor,  # [tokens]
    clip: float = 0.0,
) -> torch.Tensor:
    """-> [tokens] losses."""
    errors = (values - returns).square()
    if clip:
        bounded = old + (values - old).clamp(-clip, clip)
        errors = torch.maximum(errors, (bounded - returns).square())
    return errors / 2

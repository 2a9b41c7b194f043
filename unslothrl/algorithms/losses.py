"""Policy losses over one micro-batch, as sums that add up to the whole batch's loss.

    pg     L = -1/N sum_i A_i 1/|o_i| sum_t log pi(o_it)
           REINFORCE (Williams 1992), each sequence's log-probability averaged over its tokens
    grpo   L = -1/N sum_i 1/|o_i| sum_t min(rho_it A_i, clip(rho_it, 1 - low, 1 + high) A_i)
           rho_it = pi(o_it) / pi_old(o_it); arXiv 2402.03300, equation 3 with beta = 0

N counts the sequences of the whole batch, over all micro-batches and learners, so neither can
change the gradient. With one update a rollout pi_old is the learner's own pi, detached: rho is 1
and its gradient is that of log pi.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Loss(NamedTuple):
    value: torch.Tensor  # scalar, this micro-batch's share of the batch's loss
    clipped: int  # tokens whose gradient the clip removed


def sequence_means(values: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[tokens] -> [sequences]: the mean of each run of `lengths`; 0 for a run of none."""
    return torch.stack([run.sum() / max(len(run), 1) for run in values.split(list(lengths))])


def per_token(values: Sequence[float], lengths: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """[sequences] -> [tokens]: each value repeated over its sequence."""
    counts = torch.tensor(list(lengths), device=like.device)
    return torch.tensor(list(values), device=like.device, dtype=like.dtype).repeat_interleave(
        counts
    )


def pg(
    logprobs: torch.Tensor,  # [tokens]
    advantages: Sequence[float],  # [sequences]
    lengths: Sequence[int],  # [sequences]
    sequences: int,
) -> Loss:
    """REINFORCE with the mean log-probability of each sequence."""
    weights = torch.tensor(list(advantages), device=logprobs.device, dtype=logprobs.dtype)
    return Loss(-(weights * sequence_means(logprobs, lengths)).sum() / sequences, clipped=0)


def grpo(
    logprobs: torch.Tensor,  # [tokens]
    advantages: Sequence[float],  # [sequences]
    lengths: Sequence[int],  # [sequences]
    sequences: int,
    old_logprobs: torch.Tensor | None = None,  # [tokens]; None: this is the first update
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Loss:
    """The clipped surrogate with group-relative advantages, averaged per sequence."""
    old = logprobs.detach() if old_logprobs is None else old_logprobs
    ratio = (logprobs - old).exp()
    weights = per_token(advantages, lengths, logprobs)
    unclipped, clipped = ratio * weights, ratio.clamp(1 - clip_low, 1 + clip_high) * weights
    value = -sequence_means(torch.minimum(unclipped, clipped), lengths).sum() / sequences
    return Loss(value, clipped=int((clipped < unclipped).sum()))

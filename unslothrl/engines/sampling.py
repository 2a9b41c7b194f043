"""Sampling in which every row has random numbers of its own."""

from collections.abc import Sequence

import torch

from unslothrl.types import Request, Sampling


def uniform_numbers(requests: Sequence[Request]) -> torch.Tensor:
    """float64 in [0, 1), [requests, most new tokens]: a row depends on its request's seed alone."""
    most = max(request.sampling.max_new_tokens for request in requests)
    generators = [torch.Generator().manual_seed(request.seed) for request in requests]
    return torch.stack([torch.rand(most, generator=g, dtype=torch.float64) for g in generators])


def draw(
    logits: torch.Tensor,  # [rows, vocabulary]
    uniform: torch.Tensor,  # [rows, 1], float64
    sampling: Sampling,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverts each row's distribution at its uniform number. `max_new_tokens` plays no part.

    -> (tokens, their log-probabilities under what was sampled from), each [rows].
    """
    logprobs = keep_likely(logits.float() / sampling.temperature, sampling).log_softmax(-1)
    cumulative = logprobs.double().exp().cumsum(-1)
    token = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    token.clamp_(max=logits.shape[-1] - 1)
    return token.squeeze(-1), logprobs.gather(-1, token).squeeze(-1)


def keep_likely(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """[rows, vocabulary] logits with those outside top-k and top-p at minus infinity."""
    if sampling.top_k:
        kth = logits.topk(min(sampling.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        ordered = ordered.masked_fill(before >= sampling.top_p, -torch.inf)
        logits = torch.empty_like(logits).scatter_(-1, order, ordered)
    return logits

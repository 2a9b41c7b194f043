"""Requests that decode together under one version, one token of each a step."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from unslothrl.records import Request, Sampling

FILLER = 0  # the token that a finished row is fed with


class Chunk:
    """Rows with one sampling distribution, padded on the left to the longest prompt.

    A chunk keeps its rows to its end: those that have finished are computed on, as `generate` of
    transformers does, so that what a request draws does not depend on when its neighbours finish.
    """

    def __init__(self, requests: Sequence[Request], stop: Collection[int], device: torch.device):
        self.requests, self.stop = requests, torch.tensor(sorted(stop))
        self.sampling = requests[0].sampling
        prompts = list(dict.fromkeys(request.prompt_ids for request in requests))
        self.ids, self.mask = padded(prompts, device)
        self.positions = (self.mask.cumsum(-1) - 1).clamp_(min=0)
        at = {prompt: index for index, prompt in enumerate(prompts)}
        self.prompt_of = torch.tensor([at[request.prompt_ids] for request in requests]).to(device)
        self.cache: Any = None
        self.uniform = uniform_numbers(requests)
        self.limits = torch.tensor([request.sampling.max_new_tokens for request in requests])
        self.is_running = torch.ones(len(requests), dtype=torch.bool)
        self.steps = 0
        self.tokens = torch.zeros(self.uniform.shape, dtype=torch.long)  # [rows, most new tokens]
        self.logprobs = torch.zeros(self.uniform.shape)
        self.lengths = torch.zeros(len(requests), dtype=torch.long)  # tokens drawn

    @torch.no_grad()
    def step(self, model: Any) -> list[int]:
        """Draws one token for every row. -> the rows that finished with it."""
        logits = self._logits(model)
        uniform = self.uniform[:, self.steps, None].to(logits.device)
        drawn, logprobs = draw(logits, uniform, self.sampling)
        tokens = drawn.cpu().masked_fill_(~self.is_running, FILLER)
        self.tokens[:, self.steps], self.logprobs[:, self.steps] = tokens, logprobs.cpu()
        self.steps += 1
        self.lengths += self.is_running
        self.ids = tokens[:, None].to(logits.device)
        ended = torch.isin(tokens, self.stop) | (self.lengths == self.limits)
        finished = (ended & self.is_running).nonzero().flatten().tolist()
        self.is_running &= ~ended
        return finished

    def _logits(self, model: Any) -> torch.Tensor:
        """[rows, vocabulary] of the next token; the cache holds what came before. A prompt is
        computed once for all its requests."""
        is_first = self.cache is None
        if is_first:
            self.cache = DynamicCache(config=model.config)
        else:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], -1)
            self.positions = self.positions[:, -1:] + 1
        output = model(
            input_ids=self.ids,
            attention_mask=self.mask,
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.cache, logits = output.past_key_values, output.logits[:, -1]
        if not is_first or len(logits) == len(self.prompt_of):
            return logits
        self.cache.batch_select_indices(self.prompt_of)
        self.mask, self.positions = self.mask[self.prompt_of], self.positions[self.prompt_of]
        return logits[self.prompt_of]

    def drawn(self, row: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """-> (token ids, their log-probabilities) of a row so far."""
        length = int(self.lengths[row])
        tokens, logprobs = self.tokens[row, :length], self.logprobs[row, :length]
        return tuple(tokens.tolist()), tuple(logprobs.tolist())

    def finish_reason(self, row: int) -> str:
        """Of a row that has finished: its last token says so."""
        return "stop" if self.tokens[row, self.lengths[row] - 1] in self.stop else "length"


def padded(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (ids, 1 where they are a prompt's), each [prompts, longest], padded on the left."""
    width = max(map(len, prompts))
    ids = torch.tensor([[FILLER] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids.to(device), mask.to(device)


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

"""transformers' `generate`, sampling every row with a seed of its own.

Serves two purposes: the learner generates with the weights it trains (no second copy of the base),
and a machine without vLLM still runs.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from unslothrl.backends.peft import PeftBackend
from unslothrl.engines.base import Finished, Progress, ignore, longest_first
from unslothrl.types import Adapter, Completion, Request, Sampling
from unslothrl.weights import base_model


class SeededSampler(LogitsProcessor):
    """Draws each row's token by inverting its distribution at the row's own uniform numbers.

    `generate` then takes the argmax, which the scores returned here leave no choice about. The
    log-probability of every drawn token is kept in `logprobs`, [steps][rows].
    """

    def __init__(
        self,
        seeds: Sequence[int],
        sampling: Sampling,
        stop: Sequence[int],
        progress: Callable[[int, int], None],
    ):
        self.uniform = torch.stack(
            [
                torch.rand(
                    sampling.max_new_tokens,
                    generator=torch.Generator().manual_seed(seed),
                    dtype=torch.float64,
                )
                for seed in seeds
            ]
        )
        self.sampling, self.stop, self.progress = sampling, torch.tensor(list(stop)), progress
        self.running = torch.ones(len(seeds), dtype=torch.bool)
        self.tokens = 0
        self.logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        logits = keep_likely(scores.float() / self.sampling.temperature, self.sampling)
        logprobs = logits.log_softmax(-1)
        cumulative = logprobs.double().exp().cumsum(-1)
        draw = self.uniform[:, len(self.logprobs), None].to(scores.device) * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, draw, right=True).clamp_(max=scores.shape[-1] - 1)
        self.logprobs.append(logprobs.gather(-1, token).squeeze(-1).cpu())
        self.tokens += int(self.running.sum())
        self.running &= ~torch.isin(token.squeeze(-1).cpu(), self.stop)
        self.progress(int((~self.running).sum()), self.tokens)
        return torch.full_like(scores, -torch.inf).scatter_(-1, token, 0.0)


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


def _report(progress: Progress, before: tuple[int, int], done: int, tokens: int) -> None:
    """Progress inside a chunk, after what was done and drawn `before` it."""
    progress(before[0] + done, before[1] + tokens)


class TransformersEngine:
    """See `engines.base.Engine`. Generates with the model of a training backend.

    With `own` the backend exists for this engine alone, and `load` puts the adapter into it;
    otherwise the learner trains it and its weights are the newest version as they stand.
    """

    def __init__(self, backend: PeftBackend, base: Path, *, max_num_seqs: int, own: bool):
        self.backend, self.own = backend, own
        self.max_num_seqs = max_num_seqs
        self.stop = base_model.stop_token_ids(base)
        self.version = -1
        # `generate` fills what a call leaves open from the model's own configuration, and a
        # repetition penalty or top-k of the model would bias the ratio.
        for holder in (backend.model, backend.model.get_base_model()):
            holder.generation_config = GenerationConfig(eos_token_id=self.stop, pad_token_id=0)

    def load(self, adapter: Adapter) -> None:
        adapter.verify()
        if self.own:
            self.backend.restore_adapter(adapter)
        self.version = adapter.version

    def generate(
        self,
        requests: Sequence[Request],
        progress: Progress,
        finished: Finished = ignore,
    ) -> list[Completion]:
        by_length = longest_first(requests)
        results: dict[int, Completion] = {}
        tokens = 0
        with self.backend.generating() as model:
            for start in range(0, len(by_length), self.max_num_seqs):
                chunk = by_length[start : start + self.max_num_seqs]
                report = functools.partial(_report, progress, (len(results), tokens))
                drawn = self._generate_chunk(model, [requests[i] for i in chunk], report)
                for index, sampled in zip(chunk, drawn, strict=True):
                    results[index] = sampled
                    finished(index, sampled)
                tokens += sum(len(sampled.token_ids) for sampled in drawn)
                progress(len(results), tokens)
        self.backend.free_cache()
        return [results[i] for i in range(len(requests))]

    def _generate_chunk(
        self,
        model: Any,
        requests: Sequence[Request],
        progress: Callable[[int, int], None],
    ) -> list[Completion]:
        width = max(len(request.prompt_ids) for request in requests)
        ids = torch.zeros(len(requests), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask[row, width - len(request.prompt_ids) :] = 1
        seeds = [request.seed for request in requests]
        sampling = requests[0].sampling
        sampler = SeededSampler(seeds, sampling, list(self.stop), progress)
        output = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=GenerationConfig(
                max_new_tokens=sampling.max_new_tokens,
                do_sample=False,
                eos_token_id=self.stop,
                pad_token_id=0,
            ),
            logits_processor=LogitsProcessorList([sampler]),
        )[:, width:].tolist()
        logprobs = torch.stack(sampler.logprobs, dim=1).tolist()
        return [self._sampled(*row) for row in zip(output, logprobs, strict=True)]

    def _sampled(self, ids: list[int], logprobs: list[float]) -> Completion:
        end = next((i for i, token in enumerate(ids) if token in self.stop), None)
        length = len(ids) if end is None else end + 1
        reason = "length" if end is None else "stop"
        return Completion.drawn(tuple(ids[:length]), tuple(logprobs[:length]), reason, self.version)

    def fingerprint(self) -> str:
        return self.backend.fingerprint()

    def memory_mb(self) -> float:
        return self.backend.memory_mb()

    def close(self) -> None:
        """Nothing of its own to free."""

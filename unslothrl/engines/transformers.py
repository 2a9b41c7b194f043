"""An engine over a model of transformers, sampling every row with a seed of its own.

Serves two purposes: the learner generates with the weights it trains (no second copy of the base),
and a machine without vLLM still runs.
"""

import contextlib
import gc
from collections.abc import Collection, Hashable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from unslothrl.engines import canary
from unslothrl.engines.base import NO_LOAD, NUMBERS, Engine, Finished, InFlight, longest_first
from unslothrl.errors import AdapterMismatch
from unslothrl.records import Request, Sampling
from unslothrl.system.memory import is_out_of_memory, leaves_out_onednn, peak_memory_mb
from unslothrl.weights import base_model
from unslothrl.weights.adapter import Adapter, AdapterShape

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
        """[rows, vocabulary] of the next token. A prompt is computed once for its requests."""
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
        self.cache.reorder_cache(self.prompt_of)
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


class TransformersEngine(Engine):
    """Generates with the model of a training backend, a `backends.lora.LoraBackend`.

    With `has_own_base` the backend exists for this engine alone, and `load` puts the adapter into
    it; otherwise the learner trains it and its weights are the newest version as they stand.

    Requests run in chunks of at most `max_num_seqs` rows together, the longest prompts of all that
    wait first; of half as many where memory runs out, and of twice as many again after as many
    chunks as it has run out times. A chunk keeps its rows to its end, and a new one starts when
    there is room beside those that run. An older version that requests still need is held beside
    the newest as what was published of it: the learner's float32 weights have moved on. A request
    that follows the newest version leaves its chunk and waits for another (`InFlight`); so does
    what was added before any version was loaded. What waits begins under the newest.
    """

    def __init__(self, backend: Any, base: Path, *, max_num_seqs: int, has_own_base: bool):
        self.backend, self.has_own_base = backend, has_own_base
        self.most = self.max_num_seqs = max_num_seqs
        self.shortages = 0  # times that memory ran out
        self.whole = 0  # chunks of the most rows that ended since it did or `max_num_seqs` grew
        self.stop = base_model.stop_token_ids(base)
        self.sampled_tokens = 0
        self.newest: Adapter | None = None
        self.load_number = NO_LOAD  # of the newest
        self.versions_loaded = self.versions_unloaded = 0
        self.kept: set[int] = set()  # the loads of older versions, which the backend holds
        self.in_flight: dict[str, InFlight] = {}
        self.waiting: dict[str, InFlight] = {}  # of those
        self.running: dict[str, tuple[Chunk, int]] = {}  # the others: the chunk, the row in it
        self.chunks: list[tuple[Chunk, int]] = []  # with the load that they are drawn under
        self.awake = contextlib.ExitStack()
        self.model: Any = None  # None: asleep

    @property
    def version(self) -> int:
        """The one that is drawn under if nothing else is asked for; -1 before any was loaded."""
        return -1 if self.newest is None else self.newest.version

    def add(self, request: Request) -> None:
        if request.id in self.in_flight:
            raise ValueError(f"request {request.id!r} is in flight already: give each its own id")
        flight = InFlight(request, self.load_number, self.version)
        self.in_flight[request.id] = self.waiting[request.id] = flight
        self._wake()

    def _wake(self) -> None:
        if self.model is None:
            self.model = self.awake.enter_context(self.backend.generating())

    def step(self) -> list[Finished]:
        self._wake()
        self._start_chunks()
        finished: list[Finished] = []
        for place, (chunk, load) in enumerate(self.chunks):
            running, is_newest = int(chunk.is_running.sum()), load == self.load_number
            try:
                with contextlib.nullcontext() if is_newest else self.backend.version(load):
                    rows = chunk.step(self.model)
            except Exception as error:
                same_size = leaves_out_onednn(error)
                may_repeat = len(chunk.requests) > 1 or same_size
                if not is_out_of_memory(error) or not may_repeat:
                    raise
                rows = None
            if rows is None:  # not in the handler: its error holds what the step had allocated
                del chunk  # with its cache
                self._begin_again(place, 1 if same_size else 2)
                break
            self.sampled_tokens += running
            for row in rows:
                flight = self._taken_out(chunk.requests[row].id)
                finished.append(self._finish(flight, chunk.finish_reason(row)))
        self._drop_done()
        return finished

    def _begin_again(self, place: int, parts: int) -> None:
        """Memory ran out: what the chunk at that place draws begins again, in so many. Each request
        has its seed, so that it draws the same."""
        full, _ = self.chunks.pop(place)
        if parts > 1:
            self.max_num_seqs = len(full.requests) // parts
            self.shortages, self.whole = self.shortages + 1, 0
        again = [id for id, (chunk, _) in self.running.items() if chunk is full]
        for id in again:
            del self.running[id]
        self.waiting = {id: self.in_flight[id] for id in again} | self.waiting
        del full
        gc.collect()
        self.backend.free_cache()

    def _taken_out(self, id: str) -> InFlight:
        """Of its chunk, with what it has drawn there."""
        chunk, row = self.running.pop(id)
        chunk.is_running[row] = False
        flight = self.in_flight[id]
        flight.extend(*chunk.drawn(row))
        return flight

    def drawn(self, id: str) -> tuple[int, ...]:
        """The ids that a request in flight has so far, for who shows them meanwhile."""
        before = self.in_flight[id].token_ids
        if id not in self.running:
            return before
        chunk, row = self.running[id]
        return before + chunk.drawn(row)[0]

    def _finish(self, flight: InFlight, finish_reason: str) -> Finished:
        del self.in_flight[flight.request.id]
        return Finished(flight.request.id, flight.completion(finish_reason))

    def _start_chunks(self) -> None:
        """Of those that wait, longest prompts first, as many as there is room for.

        Beside other chunks only where no fewer wait than run: each costs a forward of its own for
        every token.
        """
        while self.waiting:
            room = self.max_num_seqs - sum(len(chunk.requests) for chunk, _ in self.chunks)
            running = sum(int(chunk.is_running.sum()) for chunk, _ in self.chunks)
            if room <= 0 or len(self.waiting) < running:
                return
            waiting = [(flight.left(), flight.load) for flight in self.waiting.values()]
            ordered = [waiting[i] for i in longest_first([request for request, _ in waiting])]
            first = goes_with(*ordered[0])
            chosen = [entry for entry in ordered if goes_with(*entry) == first][:room]
            requests, load = [request for request, _ in chosen], chosen[0][1]
            chunk = Chunk(requests, self.stop, self.backend.model.device)
            self.chunks.append((chunk, load))
            for row, request in enumerate(requests):
                del self.waiting[request.id]
                self.running[request.id] = chunk, row

    def abort(self, ids: Collection[str]) -> list[Finished]:
        finished = []
        for id in ids:
            if id in self.in_flight:
                flight = self.waiting.pop(id, None) or self._taken_out(id)
                finished.append(self._finish(flight, "abort"))
        self._drop_done()
        return finished

    def load(self, adapter: Adapter) -> None:
        adapter.verify()
        older, number = self.load_number, next(NUMBERS)
        for id, flight in self.in_flight.items():
            begins = id in self.waiting or flight.load == NO_LOAD
            if begins or flight.request.follows_newest:
                if id in self.running:
                    self.waiting[id] = self._taken_out(id)
                flight.go_on(number, adapter.version)
        self._drop_done()
        if self.newest is not None and older in self._needed():
            self.backend.keep_version(older, self.newest)
            self.kept.add(older)
            self._compare(self.newest, is_copy=True, key=older)
        elif self.newest is not None:
            self.versions_unloaded += 1
        if self.has_own_base:
            self.backend.restore_adapter(adapter)
        self._compare(adapter, is_copy=self.has_own_base)
        self.newest, self.load_number = adapter, number
        self.versions_loaded += 1

    def _compare(self, adapter: Adapter, *, is_copy: bool, key: int | None = None) -> None:
        """Raises AdapterMismatch unless the model holds `adapter` and computes with it."""
        problem = self.backend.adapter_problem(adapter, is_copy=is_copy, key=key)
        if problem is not None:
            raise AdapterMismatch.of(adapter.version, problem)

    def canary(self, shape: AdapterShape) -> int:
        """The learner's weights make room for the random ones meanwhile."""
        assert self.newest is None, "an engine that has a version would have to load it again"
        has_own_base, self.has_own_base = self.has_own_base, True
        counts = self.sampled_tokens, self.versions_loaded, self.versions_unloaded
        parameters = self.backend.parameters()
        before = {name: p.detach().to("cpu", copy=True) for name, p in parameters.items()}
        try:
            return canary.check(self, shape)
        finally:
            self.close()
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(before[name])
            self.has_own_base, self.newest, self.load_number = has_own_base, None, NO_LOAD
            self.sampled_tokens, self.versions_loaded, self.versions_unloaded = counts

    def _needed(self) -> set[int]:
        """The loads of what waits and runs."""
        waiting = {flight.load for flight in self.waiting.values()}
        return waiting | {load for _, load in self.chunks}

    def _drop_done(self) -> None:
        """Chunks of which no row runs, and the older versions that nothing needs any more."""
        running = []
        for chunk, load in self.chunks:
            if bool(chunk.is_running.any()):
                running.append((chunk, load))
            elif len(chunk.requests) == self.max_num_seqs:
                self.whole += 1
        self.chunks = running
        if self.shortages and self.whole >= self.shortages:
            self.max_num_seqs, self.whole = min(self.most, 2 * self.max_num_seqs), 0
        for load in self.kept - self._needed():
            self.backend.forget_version(load)
            self.kept.remove(load)
            self.versions_unloaded += 1

    def sleep(self) -> None:
        """Lets the backend train. What is in flight goes on with the next `step`."""
        peak_memory_mb()  # what it has awake
        self.awake.close()
        self.model = None
        self.backend.free_cache()

    def fingerprint(self) -> str:
        return self.backend.fingerprint()

    def close(self) -> None:
        self.abort(list(self.in_flight))
        self.sleep()


def goes_with(request: Request, load: int) -> Hashable:
    """What the requests of a chunk have in common."""
    sampling = request.sampling
    return load, sampling.temperature, sampling.top_p, sampling.top_k

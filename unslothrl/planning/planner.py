"""How much memory a run will take, by process, part and phase; before any weights are loaded.

Pure functions of a config, a `Shape` and a `Machine`. docs/plan.md has the formulas in words. What
is counted exactly (weights, LoRA, optimiser, KV cache, activations that autograd keeps) is tested
against the real thing on a CPU. What only a card can say is in `engine_memory.ON_A_CARD`: guesses,
not measured yet.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

from unslothrl.algorithms import objectives
from unslothrl.config.options import Config
from unslothrl.planning import engine_memory
from unslothrl.planning.engine_memory import (
    ON_A_CARD,
    cards,
    learner_has_engine,
    prefill_tokens,
    usable_mb,
)
from unslothrl.planning.machine import Gpu, Machine
from unslothrl.planning.shapes import HALF, Shape

MB = 2**20
MAX_NUM_SEQS = 256  # what an engine takes where max_num_seqs is not set
LEAST_SEQS = 8

TRAINED = {  # bytes of a LoRA weight: float32 value, gradient, and Adam's two moments
    "cuda": 4 + 4 + 2 * (1 + 4 / 256),  # 8 bits each and a float32 scale for 256
    "cpu": 4 + 4 + 2 * 4,
}
LOGITS = {"cuda": 1 << 24, "cpu": 1 << 21}  # at once, see backends/logprobs.py
LOGIT = 16  # bytes: 16 bit, float32, log-softmax, its exponential or its gradient
UNSLOTH_PREFILL = ((4, 2048), (12, 4096), (24, 6144))  # (GB for the KV cache, tokens)
MOST_SHARE = 0.9  # of a card for the learner's engine
DRAWN_LOGIT = 40  # bytes, where transformers samples: float32 and float64 copies

ON_A_HOST = {  # MB of a process besides what it computes with; measured on a CPU
    "learner": 450,
    "actor": 900,
    "driver": 700,  # this process and Ray's own
}

KEPT_FREE = "kept free by Unsloth"

Parts = dict[str, float]  # name -> MB


@dataclass(frozen=True)
class Process:
    """One actor or learner. Where there is no card, its parts lie in the host's memory."""

    name: str
    generating: Parts
    updating: Parts
    host: Parts

    def peak_mb(self) -> float:
        return max(sum(self.generating.values()), sum(self.updating.values()))


@dataclass(frozen=True)
class Card:
    """Processes on one card, which are all in the same phase at a time."""

    name: str
    usable_mb: float
    processes: tuple[Process, ...]

    def needed_mb(self) -> float:
        return max(
            sum(sum(one.generating.values()) for one in self.processes),
            sum(sum(one.updating.values()) for one in self.processes),
        )

    @property
    def fits(self) -> bool:
        return self.needed_mb() <= self.usable_mb


@dataclass(frozen=True)
class Store:
    """Host memory, /dev/shm or the disk; `has_mb` is None where that is not known, `instead` what
    takes its place where there is too little."""

    name: str
    needed_mb: float
    has_mb: float | None
    instead: str | None = None

    @property
    def holds(self) -> bool:
        return self.has_mb is None or self.needed_mb <= self.has_mb

    @property
    def fits(self) -> bool:
        return self.holds or self.instead is not None


@dataclass(frozen=True)
class Plan:
    cards: tuple[Card, ...]
    on_host: tuple[Process, ...]  # processes without a card
    stores: tuple[Store, ...]

    @property
    def fits(self) -> bool:
        on_cards = all(card.fits for card in self.cards)
        return on_cards and all(store.fits for store in self.stores)

    def to_json(self) -> dict[str, Any]:
        return {
            "fits": self.fits,
            "cards": [
                {
                    "name": card.name,
                    "usable_mb": round(card.usable_mb),
                    "needed_mb": round(card.needed_mb()),
                    "fits": card.fits,
                    "processes": [of_process(one) for one in card.processes],
                }
                for card in self.cards
            ],
            "processes_without_a_card": [of_process(one) for one in self.on_host],
            "stores": [
                {
                    "name": one.name,
                    "needed_mb": round(one.needed_mb),
                    "has_mb": one.has_mb and round(one.has_mb),
                    "fits": one.fits,
                }
                for one in self.stores
            ],
        }


def of_process(one: Process) -> dict[str, Any]:
    phases = {"generating": one.generating, "updating": one.updating, "host": one.host}
    rounded = {name: {k: round(v) for k, v in parts.items()} for name, parts in phases.items()}
    return {"name": one.name, "peak_mb": round(one.peak_mb()), **rounded}


def plan(config: Config, shape: Shape, machine: Machine) -> Plan:
    """What the run would take on this machine's cards, or on its host where it has none."""
    gpus = cards(config, machine)
    count = config.number_of_learners + config.number_of_actors
    by_card = seats(config.number_of_learners, config.number_of_actors, len(gpus))
    everyone: list[Process] = []
    for i in range(count):
        seat = next((n for n, those in enumerate(by_card) if i in those), None)
        gpu = None if seat is None else gpus[seat]
        index = i - config.number_of_learners
        if index < 0:
            everyone.append(learner(config, shape, gpu, i))
        else:
            beside = bool(gpu) and by_card[seat or 0][0] < config.number_of_learners
            # as Ray reserves it: an even part of a card, also where one has fewer actors
            engines = max((len(those) for those in by_card), default=1)
            everyone.append(actor(config, shape, gpu, index, beside, engines))
    host = sum(sum(one.host.values()) for one in everyone) + ON_A_HOST["driver"]
    found = tuple(
        Card(gpu.name, usable_mb(gpu), tuple(everyone[i] for i in those))
        for gpu, those in zip(gpus, by_card, strict=True)
        if those
    )
    if not found:
        host += sum(one.peak_mb() for one in everyone)
    adapter = shape.lora_weights(config.max_lora_rank) * HALF / MB
    stores = (
        Store("host memory", host, machine.ram_mb or None),
        Store("/dev/shm", 2 * adapter * (1 + count), machine.shm_mb, "the disk"),
        Store("disk", disk_mb(config, shape, machine), machine.disk_mb),
    )
    return Plan(found, () if found else tuple(everyone), stores)


def seats(learners: int, actors: int, gpus: int) -> list[list[int]]:
    """The processes of each card, learners first, as `placement.place` gives them out."""
    found: list[list[int]] = [[] for _ in range(gpus)]
    for i in range(learners + actors if gpus else 0):
        own = min(learners, gpus)
        seat = i if i < learners else own + (i - learners) % max(1, gpus - own)
        found[min(seat, gpus - 1)].append(i)
    return found


def shares_a_card(config: Config, machine: Machine) -> bool:
    """Whether actors lie on the learner's card: then each frees it for the other."""
    return bool(config.number_of_actors) and len(cards(config, machine)) == 1


def learner(config: Config, shape: Shape, gpu: Gpu | None, index: int = 0) -> Process:
    """Base, LoRA and optimiser stay; a rollout adds a KV cache, an update its activations."""
    on = "cuda" if gpu else "cpu"
    loras = 2 if objectives.load(config.learner).has_critic else 1
    has_engine = gpu is not None and learner_has_engine(config)
    stays: Parts = {
        "weights": (shape.engine_bytes() if has_engine else shape.weight_bytes()) / MB,
        "adapter and optimiser": loras
        * shape.lora_weights(config.max_lora_rank)
        * TRAINED[on]
        / MB,
    }
    if gpu:
        stays["CUDA context"] = ON_A_CARD["context"]
    generates = config.number_of_actors == 0 or config.learner_chunk_size > 0
    drawing: Parts = {}
    if gpu and has_engine:
        stays["CUDA graphs"] = ON_A_CARD["graphs"]
        share = engine_memory.of_learner(config, gpu) * gpu.physical_mb
        parts = engine_parts(config, shape, unsloth_prefill(share - stays["weights"]))
        stays["engine's adapter"] = parts["adapter"]
        cache = max(share - sum(parts.values()), shape.kv_bytes(context(config)) / MB)
        drawing = {"activations": parts["activations"], "KV cache": cache}
        own = stays["adapter and optimiser"] + sum(ON_A_CARD.values())
        kept = unsloth_reserve(config, shape, gpu) - own
        if kept > 0:
            drawing[KEPT_FREE] = kept
    elif generates:
        drawing = {
            "KV cache": shape.kv_bytes(concurrent(config) * context(config)) / MB,
            "logits": concurrent(config) * shape.vocabulary * DRAWN_LOGIT / MB,
        }
    host = {"PyTorch": float(ON_A_HOST["learner"])}
    waiting = stays
    if config.offload == "model" and gpu:
        waiting = {"CUDA context": stays["CUDA context"]}
        host["model, between updates"] = stays["weights"]
    on_card, on_host = activations(config, shape, gpu)
    updating = {"activations": on_card / MB, "logits chunk": LOGITS[on] * LOGIT / MB}
    if on_host:
        host["offloaded activations"] = on_host / MB
    return Process(f"learner-{index}", {**waiting, **drawing}, {**stays, **updating}, host)


def actor(
    config: Config, shape: Shape, gpu: Gpu | None, index: int, beside_learner: bool, engines: int
) -> Process:
    """One of `engines` actors on a card. Beside a learner a vLLM sleeps during the update: its
    context and graphs stay on the card."""
    tokens = concurrent(config) * context(config)
    if config.engine != "vllm":
        parts: Parts = {
            "weights": shape.weight_bytes() / MB,
            "adapter": shape.lora_weights(config.max_lora_rank) * 4 / MB,
            "logits": concurrent(config) * shape.vocabulary * DRAWN_LOGIT / MB,
            "KV cache": shape.kv_bytes(tokens) / MB,
        }
    else:
        parts = engine_parts(config, shape, prefill_tokens(gpu))
        given = engine_memory.of_actor(config, gpu, 1 if beside_learner else engines)
        if given.kv_cache_mb is not None:
            parts["KV cache"] = given.kv_cache_mb
        elif gpu is not None:
            left = given.utilisation * gpu.physical_mb - sum(parts.values())
            parts["KV cache"] = max(left, least_cache(config, shape))
        else:
            parts["KV cache"] = shape.kv_bytes(tokens) / MB
    stays: Parts = {}
    if gpu:
        stays["CUDA context"] = ON_A_CARD["context"]
        if config.engine == "vllm":
            stays["CUDA graphs"] = ON_A_CARD["graphs"]
    host: Parts = {"PyTorch and the engine": float(ON_A_HOST["actor"])}
    generating = {**parts, **stays}
    updating = generating
    if beside_learner and config.engine == "vllm":
        updating = stays
        host["weights, asleep"] = parts["weights"]
    elif beside_learner:
        updating = {**stays, "weights": parts["weights"], "adapter": parts["adapter"]}
    return Process(f"actor-{index}", generating, updating, host)


def engine_parts(config: Config, shape: Shape, prefill: int) -> Parts:
    """What a vLLM's share holds besides its KV cache; `prefill` tokens are its largest batch."""
    sampled = concurrent(config) * shape.vocabulary * 4 * 3  # float32, softmax, log-softmax
    mlp = prefill * (2 * shape.inner + 4 * shape.hidden) * HALF
    return {
        "weights": shape.engine_bytes() / MB,
        "adapter": shape.lora_weights(vllm_rank(config)) * HALF / MB,
        "activations": (mlp + sampled) / MB,
    }


def unsloth_prefill(left_mb: float) -> int:
    """Tokens of the largest batch of the learner's engine, by what its share leaves for a KV cache
    (unsloth_zoo/vllm_utils.py:4399)."""
    return next((tokens for most, tokens in UNSLOTH_PREFILL if left_mb <= most * 1024), 8192)


def least_cache(config: Config, shape: Shape) -> float:
    """MB of a vLLM's KV cache below which it would draw too few sequences at once."""
    return shape.kv_bytes(min(LEAST_SEQS, concurrent(config)) * context(config)) / MB


def whole_cache(config: Config, shape: Shape) -> float:
    """MB of a vLLM's KV cache in which all that it draws at once finds room; its blocks of 16
    tokens are not filled to the last."""
    return 32 + 1.05 * shape.kv_bytes(concurrent(config) * context(config)) / MB


def with_engines(config: Config, given: Set[str], shape: Shape, machine: Machine) -> Config:
    """The config with what its vLLMs may take of this machine's cards where that was not given: an
    actor's KV cache beside a learner, and the share of a learner's engine."""
    gpus = cards(config, machine)
    if not gpus:
        return config
    gpu = min(gpus, key=usable_mb)
    shared = shares_a_card(config, machine)
    if shared and config.engine == "vllm" and "kv_cache_mb" not in given:
        config = replace(config, kv_cache_mb=math.ceil(whole_cache(config, shape)))
    if not learner_has_engine(config) or "learner_gpu_usage" in given:
        return config
    room = usable_mb(gpu) - beside_engine(config, shape, gpu, shared)
    prefill = unsloth_prefill(room - shape.engine_bytes() / MB)
    fixed = sum(engine_parts(config, shape, prefill).values())
    enough = unsloth_least(config, shape)
    least = max(fixed + least_cache(config, shape), enough) / gpu.memory_mb
    most = min(max(fixed + whole_cache(config, shape), enough), room) / gpu.memory_mb
    if config.number_of_actors and least <= config.learner_gpu_usage <= most:
        return config
    share = max(math.ceil(1000 * least), math.floor(1000 * min(most, MOST_SHARE))) / 1000
    return replace(config, learner_gpu_usage=min(1.0, share))


def unsloth_least(config: Config, shape: Shape) -> float:
    """MB of the share below which Unsloth gives its engine less than the run's context, by its own
    estimate: 5 bits a weight, 172 CUDA graphs, 5% of the KV cache lost
    (unsloth_zoo/vllm_utils.py:2422)."""
    weights = shape.linear_weights() * 5 / 8 + shape.other_weights() * HALF
    graphs = min(max(172 * shape.hidden * shape.layers * 4 / MB, 154), 1024)
    cache = shape.kv_bytes(context(config) + 256) / 0.95
    return (weights + shape.lora_weights(vllm_rank(config)) * HALF + cache) / MB + graphs


def unsloth_reserve(config: Config, shape: Shape, gpu: Gpu) -> float:
    """MB of `usable_mb` that Unsloth keeps out of its engine's share: two sequences' activations
    (the same function)."""
    wide = shape.hidden + 2 * shape.key + 2 + 2 * shape.inner
    elements = 2 * context(config) * wide + shape.inner * shape.hidden
    return 1.25 * elements * HALF / MB - (gpu.physical_mb - usable_mb(gpu))


def beside_engine(config: Config, shape: Shape, gpu: Gpu, shared: bool) -> float:
    """MB on a learner's card while it draws, besides its engine's share; `shared` with actors."""
    one = learner(config, shape, gpu).generating
    names = ("adapter and optimiser", "CUDA context", "CUDA graphs", KEPT_FREE)
    own = sum(one.get(name, 0) for name in names)
    others = range(config.number_of_actors if shared else 0)
    return own + sum(sum(actor(config, shape, gpu, i, True, 1).generating.values()) for i in others)


def context(config: Config) -> int:
    """Tokens of the longest prompt and completion."""
    return config.max_prompt_tokens + config.max_new_tokens


def concurrent(config: Config) -> int:
    """Sequences that an engine draws at once."""
    return config.max_num_seqs or MAX_NUM_SEQS


def vllm_rank(config: Config) -> int:
    """What vLLM rounds a LoRA's rank up to."""
    return next(r for r in (8, 16, 32, 64, 128, 256, 320, 512) if r >= config.max_lora_rank)


def activations(config: Config, shape: Shape, gpu: Gpu | None) -> tuple[float, float]:
    """-> bytes of a micro-batch's activations (on the card or, without one, here; offloaded to the
    host).

    With gradient checkpointing a card keeps what enters each layer and computes one layer at a time
    again; Unsloth moves what it keeps to the host. A CPU keeps everything.
    """
    tokens = config.train_batch_size * context(config)
    kept = shape.layers * tokens * shape.hidden * HALF
    if not gpu:
        return shape.layers * tokens * peft_layer_bytes(shape, config.max_lora_rank), 0.0
    largest = max(a * b for a, b in shape.linears()) * HALF  # a layer's weights in 16 bits
    if config.backend == "unsloth":
        return tokens * unsloth_layer_bytes(shape) + largest, kept
    return kept + tokens * peft_layer_bytes(shape, config.max_lora_rank) + largest, 0.0


def peft_layer_bytes(shape: Shape, rank: int) -> int:
    """A token's activations that autograd keeps in one layer: 16 bit, and float32 where a LoRA's
    input is cast. Exact for Llama without 4-bit layers: tests/test_planner.py."""
    wide = 28 * shape.hidden + 8 * shape.query + 4 * shape.key + 10 * shape.inner
    return wide + 7 * 4 * rank + 4 * shape.heads + 8  # LoRA's middles, attention's and norms' sums


def unsloth_layer_bytes(shape: Shape) -> int:
    """The same where LoRA is fused into the projections: inputs, queries to values, gate and up,
    and the two of the MLP's width that its backward pass works in."""
    kept = 4 * shape.hidden + 2 * shape.query + 2 * shape.key + 2 * shape.inner
    return (kept + 2 * shape.inner) * HALF


def disk_mb(config: Config, shape: Shape, machine: Machine) -> float:
    """The 4-bit base, three adapters and two checkpoints; the 16-bit base too if it is quantised
    here."""
    base = shape.weight_bytes()
    if "4bit" not in config.model:
        base += shape.parameters() * HALF
    loras = shape.lora_weights(config.max_lora_rank)
    trained = TRAINED["cuda" if machine.gpus else "cpu"] - 4  # no gradients
    return (base + loras * (3 * HALF + 2 * trained)) / MB

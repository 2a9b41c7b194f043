"""How much memory a run will take, by process, part and phase; before any weights are loaded.

Pure functions of a config, a `Shape` and a `Machine`. docs/plan.md has the formulas in words. What
is counted exactly (weights, LoRA, optimiser, KV cache, activations that autograd keeps) is tested
against the real thing on a CPU. What only a card can say is in `ON_A_CARD`: guesses, not measured
yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from unslothrl.algorithms import objectives
from unslothrl.machine import Gpu, Machine
from unslothrl.shapes import HALF, Shape

if TYPE_CHECKING:
    from unslothrl.config import Config

MB = 2**20
MAX_NUM_SEQS = 256  # what an engine takes where max_num_seqs is not set
LEAST_SEQS = 8

TRAINED = {  # bytes of a LoRA weight: float32 value, gradient, and Adam's two moments
    "cuda": 4 + 4 + 2 * (1 + 4 / 256),  # 8 bits each and a float32 scale for 256
    "cpu": 4 + 4 + 2 * 4,
}
LOGITS = {"cuda": 1 << 24, "cpu": 1 << 21}  # at once, see backends/logprobs.py
LOGIT = 16  # bytes: 16 bit, float32, log-softmax, its exponential or its gradient
DRAWN_LOGIT = 40  # bytes, where transformers samples: float32 and float64 copies
PREFILL = 8192  # tokens of vLLM's largest batch

ON_A_CARD = {  # MB, not measured yet
    "context": 600,  # CUDA context, cuBLAS workspaces, compiled kernels of one process
    "graphs": 1_000,  # CUDA graphs of a vLLM
}
ON_A_HOST = {  # MB of a process besides what it computes with; measured on a CPU
    "learner": 450,
    "actor": 900,
    "driver": 700,  # this process and Ray's own
}
USABLE = 0.95  # of a card; the rest is lost to fragments

FREE = frozenset({"max_num_seqs", "train_batch_size", "num_candidates", "max_new_tokens"})
# what a search may change

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


def usable_mb(gpu: Gpu) -> float:
    return min(gpu.free_mb, USABLE * gpu.memory_mb)


def of_process(one: Process) -> dict[str, Any]:
    phases = {"generating": one.generating, "updating": one.updating, "host": one.host}
    rounded = {name: {k: round(v) for k, v in parts.items()} for name, parts in phases.items()}
    return {"name": one.name, "peak_mb": round(one.peak_mb()), **rounded}


def plan(config: Config, shape: Shape, machine: Machine) -> Plan:
    """What the run would take on this machine's cards, or on its host where it has none."""
    learners = [learner(config, shape, machine, i) for i in range(config.number_of_learners)]
    on_one = shares_a_card(config, machine)
    free = machine.gpus[0].memory_mb if machine.gpus else None
    actors = [actor(config, shape, machine, free, i, on_one)
              for i in range(config.number_of_actors)]  # fmt: skip
    everyone = (*learners, *actors)
    host = sum(sum(one.host.values()) for one in everyone) + ON_A_HOST["driver"]
    cards: list[Card] = []
    by_card = seats(len(learners), len(actors), len(machine.gpus))
    for gpu, those in zip(machine.gpus, by_card, strict=True):
        if those:
            cards.append(Card(gpu.name, usable_mb(gpu), tuple(everyone[i] for i in those)))
    if not cards:
        host += sum(one.peak_mb() for one in everyone)
    adapter = shape.lora_weights(config.max_lora_rank) * HALF / MB
    stores = (
        Store("host memory", host, machine.ram_mb or None),
        Store("/dev/shm", 2 * adapter * (1 + len(everyone)), machine.shm_mb, "the disk"),
        Store("disk", disk_mb(config, shape, machine), machine.disk_mb),
    )
    return Plan(tuple(cards), () if cards else everyone, stores)


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
    return bool(config.number_of_actors) and len(machine.gpus) == 1


def learner(config: Config, shape: Shape, machine: Machine, index: int = 0) -> Process:
    """Base, LoRA and optimiser stay; a rollout adds a KV cache, an update its activations."""
    on = "cuda" if machine.gpus else "cpu"
    loras = 2 if objectives.load(config.learner).has_critic else 1
    stays: Parts = {
        "weights": shape.weight_bytes() / MB,
        "adapter and optimiser": loras
        * shape.lora_weights(config.max_lora_rank)
        * TRAINED[on]
        / MB,
    }
    if on == "cuda":
        stays["CUDA context"] = ON_A_CARD["context"]
    generates = config.number_of_actors == 0 or config.learner_chunk_size > 0
    shared_vllm = config.engine == "vllm" and config.backend == "unsloth" and on == "cuda"
    drawing: Parts = {}
    if generates and shared_vllm:
        stays["CUDA graphs"] = ON_A_CARD["graphs"]
        drawing = {"activations": prefill_bytes(config, shape) / MB}
        taken = sum(stays.values()) + sum(drawing.values())
        drawing["KV cache"] = elastic_cache(config, shape, machine, taken)
    elif generates:
        drawing = {
            "KV cache": shape.kv_bytes(concurrent(config) * context(config)) / MB,
            "logits": concurrent(config) * shape.vocabulary * DRAWN_LOGIT / MB,
        }
    host = {"PyTorch": float(ON_A_HOST["learner"])}
    waiting = stays
    if config.offload == "model" and on == "cuda":
        waiting = {"CUDA context": stays["CUDA context"]}
        host["model, between updates"] = stays["weights"]
    on_card, on_host = activations(config, shape, machine)
    updating = {"activations": on_card / MB, "logits chunk": LOGITS[on] * LOGIT / MB}
    if on_host:
        host["offloaded activations"] = on_host / MB
    return Process(f"learner-{index}", {**waiting, **drawing}, {**stays, **updating}, host)


def actor(
    config: Config, shape: Shape, machine: Machine, card_mb: float | None, index: int, asleep: bool
) -> Process:
    """`asleep`: during the update only its context and graphs stay on the card."""
    drawing: Parts = {"weights": shape.weight_bytes() / MB}
    tokens = concurrent(config) * context(config)
    if config.engine == "vllm":
        drawing["adapter"] = shape.lora_weights(vllm_rank(config)) * HALF / MB
        drawing["activations"] = prefill_bytes(config, shape) / MB if machine.gpus else 64.0
    else:
        drawing["adapter"] = shape.lora_weights(config.max_lora_rank) * 4 / MB
        drawing["logits"] = concurrent(config) * shape.vocabulary * DRAWN_LOGIT / MB
    stays: Parts = {}
    if machine.gpus:
        stays["CUDA context"] = ON_A_CARD["context"]
        if config.engine == "vllm":
            stays["CUDA graphs"] = ON_A_CARD["graphs"]
    cache = shape.kv_bytes(tokens) / MB
    if config.engine == "vllm" and config.kv_cache_mb is not None:
        cache = config.kv_cache_mb
    elif config.engine == "vllm" and card_mb is not None and not asleep:
        taken = sum(drawing.values()) + sum(stays.values())
        least = shape.kv_bytes(min(LEAST_SEQS, concurrent(config)) * context(config)) / MB
        cache = max(least, config.actor_gpu_usage * card_mb - taken)
    drawing["KV cache"] = cache
    host: Parts = {"PyTorch and the engine": float(ON_A_HOST["actor"])}
    if asleep:
        host["weights, asleep"] = drawing["weights"]
    generating = {**drawing, **stays}
    return Process(f"actor-{index}", generating, stays if asleep else generating, host)


def elastic_cache(config: Config, shape: Shape, machine: Machine, taken: float) -> float:
    """MB of vLLM's KV cache on a card of which so much is taken: what is left, if that is more than
    a few sequences need and not more than all; what finds no room waits."""
    one = shape.kv_bytes(context(config)) / MB
    left = min(usable_mb(gpu) for gpu in machine.gpus) - taken
    return min(max(left, min(LEAST_SEQS, concurrent(config)) * one), concurrent(config) * one)


def context(config: Config) -> int:
    """Tokens of the longest prompt and completion."""
    return config.max_prompt_tokens + config.max_new_tokens


def concurrent(config: Config) -> int:
    """Sequences that an engine draws at once."""
    return config.max_num_seqs or MAX_NUM_SEQS


def vllm_rank(config: Config) -> int:
    """What vLLM rounds a LoRA's rank up to."""
    return next(r for r in (8, 16, 32, 64, 128, 256, 320, 512) if r >= config.max_lora_rank)


def prefill_bytes(config: Config, shape: Shape) -> float:
    """vLLM's largest batch through one MLP, and the logits that it samples from."""
    tokens = max(PREFILL, context(config))
    sampled = concurrent(config) * shape.vocabulary * 4 * 3  # float32, softmax, log-softmax
    return tokens * (2 * shape.inner + 4 * shape.hidden) * HALF + sampled


def activations(config: Config, shape: Shape, machine: Machine) -> tuple[float, float]:
    """-> bytes of a micro-batch's activations (on the card or, without one, here; offloaded to the
    host).

    With gradient checkpointing a card keeps what enters each layer and computes one layer at a time
    again; Unsloth moves what it keeps to the host. A CPU keeps everything.
    """
    tokens = config.train_batch_size * context(config)
    kept = shape.layers * tokens * shape.hidden * HALF
    if not machine.gpus:
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


def largest(config: Config, fits: Callable[[Config], bool], limit: int | None) -> Config | None:
    """The longest completion that fits, one sequence a micro-batch and `LEAST_SEQS` drawn at once;
    `limit` is the model's context. None where not even 64 tokens fit."""
    small = replace(config, train_batch_size=1, max_num_seqs=LEAST_SEQS)
    most = (limit or 131_072) - config.max_prompt_tokens
    low, high = 0, most // 64
    while low < high:
        middle = (low + high + 1) // 2
        if fits(replace(small, max_new_tokens=64 * middle)):
            low = middle
        else:
            high = middle - 1
    return replace(small, max_new_tokens=64 * low) if low else None


def fastest(
    config: Config, fits: Callable[[Config], bool], limit: int | None = None
) -> Config | None:
    """The most sequences at once, then the largest micro-batch, that fit at the given lengths."""
    found = None
    for seqs in powers(MAX_NUM_SEQS):
        for micro_batch in powers(64):
            tried = replace(config, max_num_seqs=seqs, train_batch_size=micro_batch)
            if fits(tried):
                return tried
        if found is None and fits(replace(config, max_num_seqs=seqs, train_batch_size=1)):
            found = replace(config, max_num_seqs=seqs, train_batch_size=1)
    return found


def powers(most: int) -> Iterator[int]:
    """`most`, its half, ..., 1."""
    while most:
        yield most
        most //= 2

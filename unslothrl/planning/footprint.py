"""How much memory a learner and an actor need, by part and phase; before any weights are loaded.

Pure functions of a config, a `Shape` and a GPU. docs/architecture.md has the formulas. What is
counted exactly (weights, LoRA, optimiser, KV cache, activations that autograd keeps) is tested
against the real thing on a CPU. What only a GPU can say is in `ON_A_CARD`: guesses, not measured
yet.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from unslothrl.algorithms import objectives
from unslothrl.config.options import Config
from unslothrl.config.parts import versions_in_flight, vllm_rank
from unslothrl.rewards import model
from unslothrl.system.machine import Gpu
from unslothrl.weights.shapes import HALF, NF4_EXPANDED, Shape

MB = 2**20
LEAST_SEQS = 8

ON_A_CARD = {  # MB, not measured yet
    "context": 600,  # CUDA context, cuBLAS workspaces, compiled kernels of one process
    "graphs": 1_000,  # CUDA graphs of a vLLM
}
USABLE = 0.95  # of a GPU; the rest is lost to fragments
CHECK_ONLY = 0.01  # a utilisation that passes the check, where the KV cache's size is fixed
PREFILL_TOKENS = 8192  # of vLLM's largest batch
LARGE_PREFILL_TOKENS = 16_384
LARGE_CARD_MB = 70 * 1024

TRAINED = {  # bytes of a LoRA weight: float32 value, gradient, and Adam's two moments
    "cuda": 4 + 4 + 2 * (1 + 4 / 256),  # 8 bits each and a float32 scale for 256
    "cpu": 4 + 4 + 2 * 4,
}
LOGITS = {"cuda": 1 << 24, "cpu": 1 << 21}  # at once, of which some four copies are alive
FILL = 256  # a row's tokens on a CPU are a multiple of it, see backends/packing.py
LOGIT = 16  # bytes: 16 bit, float32, log-softmax, its exponential or its gradient
UNSLOTH_PREFILL = ((4, 2048), (12, 4096), (24, 6144))  # (GB for the KV cache, tokens)
SAMPLED_LOGIT = 40  # bytes, where transformers samples: float32 and float64 copies

ON_A_HOST = {  # MB of a process besides what it computes with; measured on a CPU
    "learner": 450,
    "actor": 900,
}

EPISODES = {  # MB of (all, each) of the processes of environments; measured with a calculator
    "environment": (20, 5),
    "tools": (180, 25),  # with transformers, which reads their schemas; with a Python
}

KEPT_FREE = "kept free by Unsloth"
NCCL_MB = 300.0  # buffers of a process that sums with others over NCCL; not measured yet

Parts = dict[str, float]  # name -> MB


@dataclass(frozen=True)
class EngineMemory:
    """What vLLM is given. `utilisation` is a fraction of the GPU's whole memory.

    vLLM 0.26 refuses to start unless that share is free, also where the size of the KV cache is
    fixed and the share means nothing else (v1/worker/gpu_worker.py:389, v1/worker/utils.py:425). By
    then its CUDA context is there; the CUDA graphs come last and are not in its profile
    (v1/worker/gpu/model_runner.py:705). Both come on top of it.
    """

    kv_cache_mb: int | None = None  # None: what `utilisation` leaves
    utilisation: float = 0.9
    prefill_tokens: int = PREFILL_TOKENS


@dataclass(frozen=True)
class EngineLimits:
    """What the options allow a vLLM, on whatever GPU it will be."""

    usage: float  # the most that it may take, as a fraction of the GPU's memory
    kv_cache_mb: int | None = None  # a fixed size of its KV cache
    nccl_mb: float = 0.0  # of each GPU of several; vLLM 0.26 counts from when it is there

    def on(self, gpu: Gpu | None, share: float, free_mb: float | None = None) -> EngineMemory:
        """What it is given on a GPU of whose memory `share` is the process's, CUDA context and
        graphs included; without a GPU its KV cache alone counts.

        `free_mb` is what is free once the process's CUDA context is there: where somebody else has
        taken memory since the placement was made, the engine gets less.
        """
        if gpu is None:
            return EngineMemory(self.kv_cache_mb)
        if self.kv_cache_mb is not None:
            return EngineMemory(self.kv_cache_mb, CHECK_ONLY, prefill_tokens(gpu))
        most = share * gpu.memory_mb - ON_A_CARD["context"] - self.nccl_mb
        if free_mb is not None:
            most = min(most, free_mb)
        most = min(self.usage * gpu.memory_mb, most - ON_A_CARD["graphs"])
        share = math.floor(1000 * most / gpu.physical_mb + 1e-6) / 1000  # of the GPU's whole memory
        return EngineMemory(None, max(CHECK_ONLY, share), prefill_tokens(gpu))


def usable_mb(gpu: Gpu) -> float:
    """What our processes may take of a GPU together."""
    return min(gpu.free_mb, USABLE * gpu.memory_mb)


def usable_share(gpu: Gpu | None) -> float:
    """As a fraction of the GPU's memory; of one that nobody has looked at, as if idle."""
    return USABLE if gpu is None else usable_mb(gpu) / gpu.memory_mb


def prefill_tokens(gpu: Gpu | None) -> int:
    """Of an actor's largest batch: vLLM's for a GPU of that size (engine/arg_utils.py:2460)."""
    if gpu is None or gpu.memory_mb < LARGE_CARD_MB or "a100" in gpu.name.lower():
        return PREFILL_TOKENS
    return LARGE_PREFILL_TOKENS


@dataclass(frozen=True)
class Needs:
    """What a process holds while completions are generated (nothing in SFT, DPO and RM) and while
    the LoRA is updated, and what it takes of the host's memory all the time. Without a GPU the
    phases' parts lie there too."""

    generating: Parts
    updating: Parts
    host: Parts
    spare_mb: float = 0.0  # of a vLLM's KV cache, which takes what is left, beyond `least_cache`

    def generating_mb(self) -> float:
        return sum(self.generating.values())

    def updating_mb(self) -> float:
        return sum(self.updating.values())

    def peak_mb(self) -> float:
        return max(self.generating_mb(), self.updating_mb())

    def to_json(self) -> dict[str, Any]:
        phases = {"generating": self.generating, "updating": self.updating}
        phases = phases if self.generating else {"training": self.updating}
        phases["host"] = self.host
        return {name: {k: round(v, 1) for k, v in parts.items()} for name, parts in phases.items()}


def gb(mb: float) -> str:
    return f"{mb / 1024:.1f}".removesuffix(".0") + " GB"


def learner(
    config: Config,
    shape: Shape,
    gpu: Gpu | None,
    engine: EngineMemory | None = None,
    is_beside: bool = False,
) -> Needs:
    """Base, LoRA and optimiser stay; a rollout adds a KV cache, an update its activations.

    `engine` is what the vLLM over its weights is given; None where it has none. Beside an actor
    (`is_beside`) a learner's part of a base is in host memory while completions are generated.
    """
    on = "cuda" if gpu else "cpu"
    loras = 2 if objectives.load(config.learner).has_critic else 1
    trained = loras * shape.lora_weights(config.max_lora_rank) * TRAINED[on]
    weights = shape.engine_bytes() if gpu and engine else part_bytes(config, shape)
    stays: Parts = {"weights": weights / MB, "adapter and optimiser": trained / MB}
    if has_reward_model(config):
        # float32, of its own rank, which is not known to be another
        stays["reward model"] = shape.lora_weights(config.max_lora_rank) * 4 / MB
    generating: Parts = {}
    spare = 0.0
    if gpu:
        stays["CUDA context"] = ON_A_CARD["context"]
    if gpu and config.number_of_learners > 1:
        groups = 1 + (config.learners_together > 1) + (config.learner_shards > 1)
        stays["NCCL"] = NCCL_MB * groups
    if gpu and engine:
        stays["CUDA graphs"] = ON_A_CARD["graphs"]
        share = engine.utilisation * gpu.physical_mb
        parts = engine_parts(config, shape, unsloth_prefill(share - stays["weights"]))
        stays["engine's adapter"] = parts["adapter"]
        cache = max(share - sum(parts.values()), shape.kv_bytes(config.context) / MB)
        spare = max(0.0, cache - least_cache(config, shape))
        generating = {"activations": parts["activations"], "KV cache": cache}
        beside = stays["adapter and optimiser"] + sum(ON_A_CARD.values())
        kept = unsloth_reserve(config, shape, gpu) - beside
        if kept > 0:
            generating[KEPT_FREE] = kept
    elif config.learner_generates:
        generating = {
            "KV cache": shape.kv_bytes(*cached(config)) / MB,
            "logits": config.sequences_at_once * shape.vocabulary * SAMPLED_LOGIT / MB,
        }
    host = {"PyTorch": float(ON_A_HOST["learner"])}
    if config.learner_generates:
        host |= episodes(config)
    waiting = stays
    if gpu and (config.offload == "model" or (config.learner_shards > 1 and is_beside)):
        gone = {"weights"} if config.learner_shards > 1 else stays.keys() - {"CUDA context"}
        waiting = {name: mb for name, mb in stays.items() if name not in gone}
        host["model, between updates"] = stays["weights"]
    updating, on_host = of_update(config, shape, gpu)
    if on_host:
        host["offloaded activations"] = on_host / MB
    return Needs({**waiting, **generating}, {**stays, **updating}, host, spare)


def of_update(config: Config, shape: Shape, gpu: Gpu | None) -> tuple[Parts, float]:
    """-> (what an update adds, bytes of activations that it has in the host's memory)."""
    on, updating = "cuda" if gpu else "cpu", dict[str, float]()
    fill = 1 if gpu else FILL
    row = -(-config.train_batch_size * config.context // fill) * fill
    tokens = -(-row // config.context_parallel)
    layers = -(-shape.layers // config.pipeline_stages)
    own = replace(shape.shard(config.learner_tensor_parallel), layers=layers)  # what it computes
    loras = 2 if objectives.load(config.learner).has_critic else 1
    on_gpu, on_host = activations(tokens, config.max_lora_rank, config.backend, own, gpu)
    if (ahead := config.pipeline_stages - 1) and gpu:  # what layers begin with, of the first stage
        kept = own.layers * tokens * shape.hidden * HALF / MB
        updating["micro-batches under way"] = ahead * loras * kept
    updating |= {"activations": on_gpu / MB, "logits chunk": LOGITS[on] * LOGIT / MB}
    if config.learner_shards > 1:
        updating["gathered layers"] = shape.gathered_bytes() / MB
    if config.number_of_learners > 1:  # see learners/exchange.pack
        updating["sum of gradients"] = loras * shape.lora_weights(config.max_lora_rank) * 4 / MB
    return updating, on_host


def part_bytes(config: Config, shape: Shape) -> float:
    """Of the base, what a learner keeps."""
    tensors, stages = config.learner_tensor_parallel, config.pipeline_stages
    if tensors > 1:  # its scales are float32 there
        split = (shape.linear_weights() - shape.unquantised) * NF4_EXPANDED
        return split / tensors + shape.other_weights() * HALF + shape.unquantised * HALF / tensors
    if stages > 1:
        layers = -(-shape.layers // stages)
        return layers * shape.layer_bytes() + shape.table_bytes()
    return shape.part_bytes(config.learner_shards)


def has_reward_model(config: Config) -> bool:
    return any(text.startswith(model.PREFIX) for text in config.reward)


def actor(
    config: Config, shape: Shape, gpu: Gpu | None, engine: EngineMemory | None, is_beside: bool
) -> Needs:
    """`engine` is what its vLLM is given, None where it generates by transformers. Beside a learner
    (`is_beside`) a vLLM sleeps during the update: its context and graphs stay on the GPU. Where it
    is split, that is what each of its GPUs holds; without GPUs, all of them together."""
    workers, stages = config.gpus_per_actor, config.actor_pipeline_parallel
    part = shape.shard(workers)
    if stages > 1:  # the first has the embedding, the last the output layer
        part = replace(shape, layers=-(-shape.layers // stages), tied=True)
    spare = 0.0
    if engine is None:
        loras = versions_in_flight(config) * shape.lora_weights(config.max_lora_rank)
        parts: Parts = {
            "weights": shape.weight_bytes() / MB,
            "adapter": loras * 4 / MB,
            "logits": config.sequences_at_once * shape.vocabulary * SAMPLED_LOGIT / MB,
            "KV cache": shape.kv_bytes(*cached(config)) / MB,
        }
    else:
        parts = engine_parts(config, part, prefill_tokens(gpu), shape.vocabulary)
        if engine.kv_cache_mb is not None:
            parts["KV cache"] = engine.kv_cache_mb
        elif gpu is not None:
            left = engine.utilisation * gpu.physical_mb - sum(parts.values())
            parts["KV cache"] = max(left, least_cache(config, part))
            spare = parts["KV cache"] - least_cache(config, part)
        else:
            parts["KV cache"] = part.kv_bytes(*cached(config)) / MB
        if gpu is None:
            parts = {name: workers * mb for name, mb in parts.items()}
    stays: Parts = {}
    if gpu:
        stays["CUDA context"] = ON_A_CARD["context"]
        if engine:
            stays["CUDA graphs"] = ON_A_CARD["graphs"]
        if workers > 1:
            stays["NCCL"] = NCCL_MB
    host: Parts = {"PyTorch and the engine": float(ON_A_HOST["actor"]), **episodes(config)}
    if engine:
        host["policy versions"] = workers * versions_mb(config, shape, config.max_lora_rank)
    if workers > 1:
        host["vLLM's workers"] = float(workers * ON_A_HOST["actor"])
    generating = {**parts, **stays}
    updating = generating
    if is_beside and engine:
        updating = stays
        host["weights, asleep"] = workers * parts["weights"]
    elif is_beside:
        updating = {**stays, "weights": parts["weights"], "adapter": parts["adapter"]}
    return Needs(generating, updating, host, spare)


def episodes(config: Config) -> Parts:
    """The processes of the episodes that a process plays at once, without what a user's environment
    itself holds; nothing where there is no environment."""
    if not config.has_environment:
        return {}
    common, each = EPISODES["tools" if config.tools else "environment"]
    at_once = min(config.sequences_at_once, config.completions_per_step)
    return {"environments": float(common + each * at_once)}


def engine_parts(
    config: Config, shape: Shape, prefill: int, vocabulary: int | None = None
) -> Parts:
    """What a vLLM's share holds besides its KV cache; `prefill` tokens are its largest batch.
    `vocabulary`: the whole one, whose logits every GPU has, where `shape` is a GPU's part."""
    whole = vocabulary or shape.vocabulary
    sampled = config.sequences_at_once * whole * 4 * 3  # float32, softmax, log-softmax
    mlp = prefill * (2 * shape.inner + 4 * shape.hidden) * HALF
    return {
        "weights": shape.engine_bytes() / MB,
        "adapter": versions_mb(config, shape, vllm_rank(config.max_lora_rank)),
        "activations": (mlp + sampled) / MB,
    }


def versions_mb(config: Config, shape: Shape, rank: int) -> float:
    """MB of the policy versions that a vLLM draws under at once, in the type that it computes in:
    it has a slot for each, at the rank that it rounds to, and copies in the host's memory."""
    bytes_of_one = shape.lora_weights(rank) * (4 if config.dtype == "float32" else HALF)
    return versions_in_flight(config) * bytes_of_one / MB


def unsloth_prefill(left_mb: float) -> int:
    """Of the largest batch, by what is left for a KV cache (unsloth_zoo/vllm_utils.py:4399)."""
    return next((tokens for most, tokens in UNSLOTH_PREFILL if left_mb <= most * 1024), 8192)


def cached(config: Config) -> tuple[int, int]:
    """(tokens, sequences) that are kept at once."""
    return config.sequences_at_once * config.context, config.sequences_at_once


def least_cache(config: Config, shape: Shape) -> float:
    """MB of a vLLM's KV cache below which it would run too few sequences at once."""
    sequences = min(LEAST_SEQS, config.sequences_at_once)
    return shape.kv_bytes(sequences * config.context, sequences) / MB


def whole_cache(config: Config, shape: Shape) -> float:
    """MB of a vLLM's KV cache that has room for all the sequences that run at once; its
    blocks of 16 tokens are not all filled to the last."""
    return 32 + 1.05 * shape.kv_bytes(*cached(config)) / MB


def unsloth_reserve(config: Config, shape: Shape, gpu: Gpu) -> float:
    """MB that Unsloth keeps out of its engine's share: two sequences' activations (same file)."""
    wide = shape.hidden + 2 * shape.key + 2 + 2 * shape.inner
    elements = 2 * config.context * wide + shape.inner * shape.hidden
    return 1.25 * elements * HALF / MB - (gpu.physical_mb - usable_mb(gpu))


def activations(
    tokens: int, rank: int, backend: str, shape: Shape, gpu: Gpu | None
) -> tuple[float, float]:
    """-> bytes of a micro-batch's activations (on the GPU or, without one, here; offloaded to the
    host); `tokens` of it, padding included.

    With gradient checkpointing a GPU keeps what enters each layer and computes one layer at a time
    again; Unsloth moves what it keeps to the host. A CPU keeps everything.
    """
    kept = shape.layers * tokens * shape.hidden * HALF
    if not gpu:
        return shape.layers * tokens * peft_layer_bytes(shape, rank), 0.0
    largest = max(a * b for a, b in shape.linears().values()) * HALF  # a layer's weights in 16 bits
    if backend == "unsloth":  # LoRA is fused into the projections: inputs, queries to values, gate
        # and up, and the two of the MLP's width that its backward pass works in
        layer = 4 * shape.hidden + 2 * shape.query + 2 * shape.key + 4 * shape.inner
        return tokens * layer * HALF + largest, kept
    return kept + tokens * peft_layer_bytes(shape, rank) + largest, 0.0


def peft_layer_bytes(shape: Shape, rank: int) -> int:
    """A token's activations that autograd keeps in one layer: 16 bit, and float32 where a LoRA's
    input is cast. Exact for Llama without 4-bit layers: tests/test_plan.py."""
    wide = 28 * shape.hidden + 8 * shape.query + 4 * shape.key + 10 * shape.inner
    return wide + 7 * 4 * rank + 4 * shape.heads + 8  # LoRA's middles, attention's and norms' sums

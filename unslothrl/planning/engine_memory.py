"""How much of its card a vLLM may take: the one place where shares and KV sizes are decided.

vLLM 0.26 refuses to start unless `gpu_memory_utilization` of the card's whole memory is free, also
where the size of the KV cache is fixed and the share means nothing else
(v1/worker/gpu_worker.py:389, v1/worker/utils.py:425). By then its CUDA context is there; the CUDA
graphs come last and are not in its profile (v1/worker/gpu/model_runner.py:705). Both come on top of
the share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from unslothrl.config.options import Config
from unslothrl.planning.machine import Gpu, Machine

ON_A_CARD = {  # MB, not measured yet
    "context": 600,  # CUDA context, cuBLAS workspaces, compiled kernels of one process
    "graphs": 1_000,  # CUDA graphs of a vLLM
}
USABLE = 0.95  # of a card; the rest is lost to fragments
CHECK_ONLY = 0.01  # a utilisation that passes the check, where the KV cache's size is fixed
PREFILL_TOKENS = 8192  # of vLLM's largest batch
LARGE_PREFILL_TOKENS = 16_384
LARGE_CARD_MB = 70 * 1024


@dataclass(frozen=True)
class EngineMemory:
    """What vLLM is given. `utilisation` is a fraction of the card's whole memory."""

    kv_cache_mb: int | None = None  # None: what `utilisation` leaves
    utilisation: float = 0.9
    prefill_tokens: int = PREFILL_TOKENS


def cards(config: Config, machine: Machine) -> tuple[Gpu, ...]:
    """The cards that a run on this machine computes on: one process uses the first alone."""
    return machine.gpus[:1] if config.cluster == "local" else machine.gpus


def learner_has_engine(config: Config) -> bool:
    """Whether the learner draws completions by a vLLM over its own weights, given a card."""
    generates = config.number_of_actors == 0 or config.learner_chunk_size > 0
    return generates and (config.engine, config.backend) == ("vllm", "unsloth")


def usable_mb(gpu: Gpu) -> float:
    """What our processes may take of a card together."""
    return min(gpu.free_mb, USABLE * gpu.memory_mb)


def most_mb(gpu: Gpu, engines: int = 1, free_mb: float | None = None) -> float:
    """The largest share of one of `engines` vLLMs that are awake on a card at the same time.

    `gpu` is the card before any of them started; `free_mb` what is free when this one starts and
    its CUDA context is there.
    """
    most = usable_mb(gpu) / engines - ON_A_CARD["context"]
    if free_mb is not None:
        most = min(most, free_mb)
    return most - ON_A_CARD["graphs"]


def prefill_tokens(gpu: Gpu | None) -> int:
    """Tokens of an actor's largest batch: what vLLM chooses for a card of the size that we may use
    (engine/arg_utils.py:2460)."""
    if gpu is None or gpu.memory_mb < LARGE_CARD_MB or "a100" in gpu.name.lower():
        return PREFILL_TOKENS
    return LARGE_PREFILL_TOKENS


def of_actor(
    config: Config, gpu: Gpu | None, engines: int = 1, free_mb: float | None = None
) -> EngineMemory:
    """What an actor's vLLM is given; without a card its KV cache alone counts. See `most_mb`."""
    if gpu is None:
        return EngineMemory(config.kv_cache_mb)
    if config.kv_cache_mb is not None:
        return EngineMemory(config.kv_cache_mb, CHECK_ONLY, prefill_tokens(gpu))
    share = min(config.actor_gpu_usage * gpu.memory_mb, most_mb(gpu, engines, free_mb))
    return EngineMemory(None, fraction(share, gpu), prefill_tokens(gpu))


def of_learner(config: Config, gpu: Gpu, free_mb: float | None = None) -> float:
    """The utilisation of the learner's own vLLM, whose weights are the learner's."""
    share = min(config.learner_gpu_usage * gpu.memory_mb, most_mb(gpu, free_mb=free_mb))
    return fraction(share, gpu)


def fraction(mb: float, gpu: Gpu) -> float:
    """As a fraction of the card's whole memory, rounded down."""
    return max(CHECK_ONLY, math.floor(1000 * mb / gpu.physical_mb + 1e-6) / 1000)

"""How much of its GPU a vLLM may take: what `LLM` is given, and the bounds that it comes from.

vLLM 0.26 refuses to start unless `gpu_memory_utilization` of the GPU's whole memory is free, also
where the size of the KV cache is fixed and the share means nothing else
(v1/worker/gpu_worker.py:389, v1/worker/utils.py:425). By then its CUDA context is there; the CUDA
graphs come last and are not in its profile (v1/worker/gpu/model_runner.py:705). Both come on top of
the utilisation.
"""

import math
from dataclasses import dataclass

from unslothrl.system.machine import Gpu

ON_A_CARD = {  # MB, not measured yet
    "context": 600,  # CUDA context, cuBLAS workspaces, compiled kernels of one process
    "graphs": 1_000,  # CUDA graphs of a vLLM
}
USABLE = 0.95  # of a GPU; the rest is lost to fragments
CHECK_ONLY = 0.01  # a utilisation that passes the check, where the KV cache's size is fixed
PREFILL_TOKENS = 8192  # of vLLM's largest batch
LARGE_PREFILL_TOKENS = 16_384
LARGE_CARD_MB = 70 * 1024


@dataclass(frozen=True)
class EngineMemory:
    """What vLLM is given. `utilisation` is a fraction of the GPU's whole memory."""

    kv_cache_mb: int | None = None  # None: what `utilisation` leaves
    utilisation: float = 0.9
    prefill_tokens: int = PREFILL_TOKENS


@dataclass(frozen=True)
class EngineLimits:
    """What the options allow a vLLM, on whatever GPU it will be."""

    usage: float  # the most that it may take, as a fraction of the GPU's memory
    kv_cache_mb: int | None = None  # a fixed size of its KV cache

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
        most = share * gpu.memory_mb - ON_A_CARD["context"]
        if free_mb is not None:
            most = min(most, free_mb)
        most = min(self.usage * gpu.memory_mb, most - ON_A_CARD["graphs"])
        return EngineMemory(None, fraction(most, gpu), prefill_tokens(gpu))


def usable_mb(gpu: Gpu) -> float:
    """What our processes may take of a GPU together."""
    return min(gpu.free_mb, USABLE * gpu.memory_mb)


def usable_share(gpu: Gpu | None) -> float:
    """The same as a fraction of the GPU's memory; of a GPU that nobody has looked at yet, what
    there is of an idle one."""
    return USABLE if gpu is None else usable_mb(gpu) / gpu.memory_mb


def prefill_tokens(gpu: Gpu | None) -> int:
    """Tokens of an actor's largest batch: what vLLM chooses for a GPU of the size that we may use
    (engine/arg_utils.py:2460)."""
    if gpu is None or gpu.memory_mb < LARGE_CARD_MB or "a100" in gpu.name.lower():
        return PREFILL_TOKENS
    return LARGE_PREFILL_TOKENS


def fraction(mb: float, gpu: Gpu) -> float:
    """As a fraction of the GPU's whole memory, rounded down."""
    return max(CHECK_ONLY, math.floor(1000 * mb / gpu.physical_mb + 1e-6) / 1000)

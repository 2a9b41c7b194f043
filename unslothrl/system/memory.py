"""How much memory this process needs, and how much of a GPU it may take.

On a GPU the figure is the driver's, with CUDA's context and without what a sleeping engine has
given back. NVML says it for one process; where it does not (WSL, a container that hides process
ids), it is the GPU's total minus what is free.
"""

import contextlib
import os
import resource
import sys

from unslothrl.system.machine import card_limit_mb

ONEDNN = "could not create a primitive"
OUT_OF_MEMORY = (  # RuntimeErrors of failed allocations that have no exception of their own
    "can't allocate memory",  # PyTorch, of the host's
    ONEDNN,  # where it finds no memory for a workspace
    "CUDA error: out of memory",  # torch.AcceleratorError: outside of the caching allocator
    "CUBLAS_STATUS_ALLOC_FAILED",  # a cuBLAS handle or workspace, made on a full GPU
    "Triton Error [CUDA]: out of memory",  # the module of a kernel
)


class MemoryElsewhere(MemoryError):
    """Another learner that shares the work has run out of memory: the pass begins anew in all."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, of a GPU's memory or the host's. Other errors of CUDA, such as
    an illegal access, leave the process without a usable GPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)


def leaves_out_onednn(error: BaseException) -> bool:
    """Whether PyTorch computes without oneDNN from here on, where that was the `error`: a primitive
    that it could not create once it may not create again in the same process."""
    import torch

    if ONEDNN not in str(error) or not torch.backends.mkldnn.enabled:
        return False
    from unslothrl.system import cpu_products

    torch.backends.mkldnn.set_flags(False)
    cpu_products.multiply_in_float32(without_onednn=True)
    return True


def limit_card_memory(unmapped_mb: float = 0.0) -> None:
    """Keeps this process's allocator within UNSLOTHRL_CARD_MB; nothing without it or a GPU.

    `unmapped_mb`: what the allocator counts although a sleeping engine has given it back. CUDA's
    own context, some 0.5 GB, is not the allocator's and comes on top.
    """
    limit = card_limit_mb()
    if limit is None:
        return
    import torch

    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (limit + unmapped_mb) * 2**20 / total))


most_of_card_mb = 0.0  # that this process was seen to have


def peak_memory_mb() -> float:
    """The peak in MB (2**20 bytes): of the GPU if this process uses one, at the moments when this
    was asked (PyTorch keeps what it has taken until the end of a step); else of the host."""
    global most_of_card_mb
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        most_of_card_mb = max(most_of_card_mb, card_memory_mb())
        return most_of_card_mb
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def card_memory_mb() -> float:
    """What this process has of its GPU; where that is not said, what of the GPU is not free."""
    import torch

    device = torch.cuda.current_device()
    with contextlib.suppress(Exception):  # not installed, no driver library, a slice of a GPU
        import pynvml

        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return process.usedGpuMemory / 2**20
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 2**20

"""How much memory this process needs, and how much of a GPU it may take.

On a GPU the figure is the driver's, with CUDA's context and without what a sleeping engine has
given back. NVML says it for one process; where it does not (WSL, a container that hides process
ids), it is the GPU's total minus what is free. Without NVML that is read only when asked.
"""

import contextlib
import functools
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from unslothrl.system.machine import card_limit_mb

READ_EVERY_S = 0.1
OUT_OF_MEMORY = (  # RuntimeErrors of failed allocations that have no exception of their own
    "can't allocate memory",  # PyTorch, of the host's
    "CUDA error: out of memory",  # torch.AcceleratorError: outside of the caching allocator
    "CUBLAS_STATUS_ALLOC_FAILED",  # a cuBLAS handle or workspace, made on a full GPU
    "Triton Error [CUDA]: out of memory",  # the module of a kernel
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, of a GPU's memory or the host's. Other errors of CUDA, such as
    an illegal access, leave the process without a usable GPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)


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


def prepare_card() -> None:
    """Limits this process on its GPU and begins to watch it, before its first model is loaded."""
    limit_card_memory()
    import torch

    if torch.cuda.is_available():
        watch_card()


def peak_memory_mb() -> float:
    """The peak in MB (2**20 bytes): of the GPU if this process uses one, else of the host."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return watch_card().peak_mb()
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


class MemoryWatch:
    """The largest of the values that `read` gives: ten times a second, or only when asked."""

    def __init__(self, read: Callable[[], float], in_background: bool = True):
        self.read, self.most = read, 0.0
        self.thread = threading.Thread(target=self._run, name="memory", daemon=True)
        if in_background:
            self.thread.start()

    def peak_mb(self) -> float:
        """Up to now, this moment included."""
        with contextlib.suppress(Exception):  # one missed reading is no reason to end a run
            self.most = max(self.most, self.read())
        return self.most

    def _run(self) -> None:
        while True:
            time.sleep(READ_EVERY_S)
            self.peak_mb()


@functools.cache
def watch_card() -> MemoryWatch:
    """Begins to watch this process's GPU, once. NVML alone is asked in the background: another
    thread's calls to CUDA could spoil the capture of a CUDA graph."""
    import torch

    device = torch.cuda.current_device()
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        nvml_memory_mb(pynvml, gpu)
    except Exception:  # not installed, no driver library, a slice of a GPU: each has its own
        return MemoryWatch(functools.partial(not_free_mb, device), in_background=False)
    return MemoryWatch(functools.partial(nvml_memory_mb, pynvml, gpu))


def nvml_memory_mb(nvml: Any, gpu: Any) -> float:
    """What this process has of the GPU; where that is not said, what of the GPU is not free."""
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu):
        if process.pid == os.getpid() and process.usedGpuMemory:
            return process.usedGpuMemory / 2**20
    whole = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return (whole.total - whole.free) / 2**20


def not_free_mb(device: int) -> float:
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 2**20

"""How much memory this process needs, and how much of a card it may take.

On a card the figure is the driver's: what the process has mapped, CUDA's context and an engine's
cache included and without what a sleeping engine has given back, which PyTorch's allocator goes on
counting. NVML says it for one process. Where it does not (no nvidia-ml-py, WSL, MIG, a container
that hides process ids), the figure is the card's total minus what is free: other processes count.
"""

import contextlib
import functools
import os
import resource
import sys
import threading
from collections.abc import Callable
from typing import Any

from unslothrl.machine import card_limit_mb

READ_EVERY_S = 0.1


def limit_card_memory(unmapped_mb: float = 0.0) -> None:
    """Keeps this process's allocator within UNSLOTHRL_CARD_MB; nothing without it or a card.

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


def peak_memory_mb() -> float:
    """The peak in MB (2**20 bytes): of the card if this process uses one, else of the host."""
    if _uses_a_card():
        return watch_card().peak_mb()
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def _uses_a_card() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()


class Watch:
    """The largest of the values that `read` gives, looked at ten times a second."""

    def __init__(self, read: Callable[[], float]):
        self.read, self.most = read, 0.0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self.thread.start()

    def peak_mb(self) -> float:
        """Up to now, this moment included."""
        self.most = max(self.most, self.read())
        return self.most

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.stopped.wait(READ_EVERY_S):
            self.peak_mb()


@functools.cache
def watch_card() -> Watch:
    """Begins to watch this process's card, once; to be called when its first model is loaded."""
    import torch

    return Watch(functools.partial(card_memory_mb, torch.cuda.current_device()))


def card_memory_mb(device: int) -> float:
    """What this process has of a card by NVML, else what of the card is not free."""
    import torch

    with contextlib.suppress(Exception):  # each failure of NVML has a class of its own
        nvml, card = nvml_card(device)
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(card):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return process.usedGpuMemory / 2**20
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 2**20


@functools.cache
def nvml_card(device: int) -> tuple[Any, Any]:
    """-> (NVML, its handle of one of the cards that torch sees)."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    uuid = torch.cuda.get_device_properties(device).uuid
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")

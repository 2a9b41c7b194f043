"""What a process may take of a card and what it has taken, with the driver's answers made up."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from unslothrl.system import memory, variables
from unslothrl.system.variables import CARD_LIMIT

GB = 2**30
MINE = os.getpid()


class Nvml:
    """Stands for the pynvml of nvidia-ml-py."""

    def __init__(self, **used: int | None):
        self.used = used
        self.asked = None

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked = uuid
        return "card"

    def nvmlDeviceGetComputeRunningProcesses(self, card: str):
        pids = {"mine": MINE, "other": MINE + 1}
        return [SimpleNamespace(pid=pids[k], usedGpuMemory=v) for k, v in self.used.items()]


@pytest.fixture
def card(monkeypatch):
    """-> a function that puts a card of so many GB into torch.cuda; it returns what was limited."""

    def put(total: int, free: int = 0, nvml: Nvml | None = None) -> list[float]:
        limited: list[float] = []
        properties = SimpleNamespace(total_memory=total * GB, uuid="1234-abcd")
        driver = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            current_device=lambda: 0,
            get_device_properties=lambda device: properties,
            mem_get_info=lambda *device: (free * GB, total * GB),
            set_per_process_memory_fraction=limited.append,
        )
        monkeypatch.setattr(torch, "cuda", driver)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)  # None: cannot be imported
        return limited

    monkeypatch.setattr(memory, "most_of_card_mb", 0.0)
    return put


@pytest.mark.parametrize(
    ("total", "limit", "unmapped", "fraction"),
    [
        (80, "16384", 0, 0.2),
        (80, "16384", 4096, 0.25),  # a sleeping engine's 4 GB are counted, and not there
        (24, "24576", 0, 1.0),
        (24, "81920", 0, 1.0),  # no larger than the card
    ],
)
def test_the_limit_is_a_share_of_the_real_card(total, limit, unmapped, fraction, card, monkeypatch):
    monkeypatch.setenv(CARD_LIMIT, limit)
    limited = card(total)
    memory.limit_card_memory(unmapped)
    assert limited == [pytest.approx(fraction)]


def test_the_limit_reaches_every_worker(monkeypatch):
    monkeypatch.setenv(CARD_LIMIT, "16384")
    assert variables.of_workers(2, True)[CARD_LIMIT] == "16384"


def test_the_drivers_figure_is_this_processes(card):
    nvml = Nvml(other=9 * GB, mine=3 * GB)
    card(24, free=10, nvml=nvml)
    assert memory.peak_memory_mb() == 3072 and nvml.asked == "GPU-1234-abcd"
    nvml.used["mine"] = GB
    assert memory.peak_memory_mb() == 3072  # the peak


@pytest.mark.parametrize("nvml", [None, Nvml(), Nvml(other=9 * GB), Nvml(mine=None)])
def test_where_nvml_hides_processes_it_is_what_is_not_free(nvml, card):
    card(24, free=10, nvml=nvml)
    assert memory.peak_memory_mb() == 14 * 1024

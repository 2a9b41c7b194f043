"""What a process may take of a card and what it has taken, with the driver's answers made up."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from unslothrl import environment, memory
from unslothrl.errors import UserError

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

    def put(total: float, free: float = 0.0, nvml: Nvml | None = None) -> list[float]:
        limited: list[float] = []
        properties = SimpleNamespace(total_memory=int(total * GB), uuid="1234-abcd")
        for name, answer in {
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "get_device_properties": lambda device: properties,
            "mem_get_info": lambda *device: (int(free * GB), int(total * GB)),
            "set_per_process_memory_fraction": limited.append,
        }.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)  # None: cannot be imported
        memory.nvml_card.cache_clear()
        return limited

    yield put
    memory.nvml_card.cache_clear()


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
    monkeypatch.setenv(memory.CARD_MB, limit)
    limited = card(total)
    memory.limit_card_memory(unmapped)
    assert limited == [pytest.approx(fraction)]


def test_without_a_limit_or_a_card_nothing_is_done(card, monkeypatch):
    monkeypatch.setenv(memory.CARD_MB, "16384")
    memory.limit_card_memory()  # no card here, and no error
    monkeypatch.delenv(memory.CARD_MB)
    limited = card(80)
    memory.limit_card_memory()
    assert limited == []


@pytest.mark.parametrize("value", ["0", "-5", "16GB", "1e4", "16384.5"])
def test_a_limit_that_is_no_size_is_refused(value, monkeypatch):
    monkeypatch.setenv(memory.CARD_MB, value)
    with pytest.raises(UserError, match=r"UNSLOTHRL_CARD_MB .*: give whole megabytes"):
        memory.card_limit_mb()


def test_the_limit_reaches_every_worker(monkeypatch):
    monkeypatch.setenv(memory.CARD_MB, "16384")
    assert environment.of_workers(2, True)[memory.CARD_MB] == "16384"


@pytest.mark.parametrize(
    ("limit", "usable"),
    [("", (70.0, 80.0)), ("24576", (14.0, 24.0)), ("8192", (0.0, 8.0)), ("99999999", (70.0, 80.0))],
)
def test_a_limited_card_looks_like_a_smaller_one(limit, usable, card, monkeypatch):
    """What others have of the real card, 10 GB, they have of the smaller one."""
    monkeypatch.setenv(memory.CARD_MB, limit)
    card(80, free=70)
    assert memory.usable_mb() == tuple(1024 * size for size in usable)


def test_the_drivers_figure_is_this_processes(card):
    nvml = Nvml(other=9 * GB, mine=3 * GB)
    card(24, free=10, nvml=nvml)
    assert memory.card_memory_mb(0) == 3072
    assert nvml.asked == "GPU-1234-abcd"


@pytest.mark.parametrize("nvml", [None, Nvml(), Nvml(other=9 * GB), Nvml(mine=None)])
def test_where_nvml_does_not_say_it_is_what_is_not_free(nvml, card):
    card(24, free=10, nvml=nvml)
    assert memory.card_memory_mb(0) == 14 * 1024


def test_the_peak_is_the_largest_reading():
    readings = iter([5.0, 9.0, 2.0])
    watch = memory.Watch(lambda: next(readings, 1.0))
    try:
        assert [watch.peak_mb() for _ in range(3)][-1] == 9.0
    finally:
        watch.stop()


def test_a_peak_between_two_questions_is_seen():
    """The thread reads it; nobody asks while the engine is awake."""
    values = [4.0]
    watch = memory.Watch(lambda: values[0])
    try:
        values[0] = 30.0
        while watch.most < 30.0:
            assert watch.thread.is_alive()
        values[0] = 4.0
        assert watch.peak_mb() == 30.0
    finally:
        watch.stop()


def test_without_a_card_it_is_the_hosts():
    assert 10 < memory.peak_memory_mb() < 10**6

"""From what a driver says to what each engine asks for, on machines that are not here."""

import json
import os
import sys
import types
from unittest.mock import Mock

import pytest
import torch
from layouts import GB, LAYOUTS, card, machine_of, placed, resolved

from unslothrl.cluster import build, on_node
from unslothrl.planning.footprint import ON_A_CARD
from unslothrl.planning.forecast import forecast_of
from unslothrl.runs.resolve import resolve
from unslothrl.system import memory, variables
from unslothrl.system.machine import Gpu, Machine, find_gpus
from unslothrl.system.variables import CARD_LIMIT
from unslothrl.weights import shapes


@pytest.fixture
def on_card(monkeypatch):
    """-> a function that makes torch answer as on a card of which so many MB are free."""

    def on(gpu: Gpu, free_mb: float) -> None:
        properties = types.SimpleNamespace(
            name=gpu.name, major=8, minor=9, uuid=gpu.uuid, total_memory=gpu.physical_mb << 20
        )
        sizes = (int(free_mb * 2**20), gpu.physical_mb << 20)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: sizes)

    return on


@pytest.mark.parametrize("name", LAYOUTS)
def test_fit_plan_and_workers_ask_for_the_same_and_it_fits(name, on_card):
    """In the order of the start, with what the plan says that each process takes: its parts are
    what vLLM is given, and its start check passes."""
    config, machine = resolved(name)
    assert forecast_of(config, shapes.shape_of(config.model), machine).fits
    for used in placed(config, machine).cards:
        free = used.gpu.free_mb
        for plan in used.processes:
            free -= ON_A_CARD["context"]
            on_card(used.gpu, free)
            memory = build.engine_memory(plan)
            assert memory == plan.engine()
            parts = plan.needs.generating
            if memory:
                assert memory.utilisation * plan.gpu.physical_mb <= free
            if memory and memory.kv_cache_mb is not None:
                assert parts["KV cache"] == memory.kv_cache_mb
            elif memory:
                adapter = parts.get("adapter", parts.get("engine's adapter"))
                engine = parts["weights"] + adapter + parts["activations"] + parts["KV cache"]
                assert engine == pytest.approx(memory.utilisation * plan.gpu.physical_mb)
            asleep = len(used.processes) > 1 and plan.takes_turns
            kept = plan.needs.updating_mb() if asleep else plan.needs.generating_mb()
            free -= kept - ON_A_CARD["context"]
            assert free >= 0


def test_a_worker_takes_what_was_planned_of_its_card(on_card):
    """What others used before counts, not what our own processes have taken since."""
    machine = machine_of((card(24, used_mb=1100, index=0), card(80, index=1)))
    _, actor = placed(resolve({"number_of_actors": "1"}, machine).config, machine).processes
    assert actor.gpu == machine.gpus[0]
    on_card(machine.gpus[0], 23 * GB)
    utilisation = build.engine_memory(actor).utilisation
    assert utilisation == pytest.approx(0.95 - 1600 / (24 * GB), abs=0.001)


def test_a_limit_makes_a_card_small_and_shares_stay_those_of_the_real_one(monkeypatch):
    whole = Gpu("H200", 143_771, 143_000, (9, 0))
    assert whole.limited() == whole
    monkeypatch.setenv("UNSLOTHRL_CARD_MB", "16384")
    small = whole.limited()
    assert (small.memory_mb, small.free_mb, small.physical_mb) == (16_384, 16_384, 143_771)
    busy = Gpu("H200", 143_771, 9_000, (9, 0)).limited()
    assert (busy.memory_mb, busy.free_mb) == (16_384, 9_000)
    assert Gpu("RTX", 8_192, 8_000, (8, 9)).limited().memory_mb == 8_192
    machine = machine_of((small, small))
    (actor,) = placed(resolve({"number_of_actors": "1"}, machine).config, machine).actors
    memory = actor.engine()  # min(0.91, 0.95 - 1600 / 16384) of 16 GB
    assert memory.utilisation == int(1000 * (0.95 * 16_384 - 1600) / 143_771) / 1000
    assert memory.prefill_tokens == 8192


# What the driver says; the program that asks torch is tested on simulated machines

RTX_4090 = ["NVIDIA RTX 4090", 24_564, 24_000, [8, 9], "GPU-0"]
RTX_3060 = ["NVIDIA RTX 3060", 12_288, 11_400, [8, 6], "GPU-1"]
LISTED = "GPU 0: NVIDIA RTX 4090 (UUID: GPU-0)"


@pytest.fixture
def driver(monkeypatch):
    """-> a function that gives this machine a driver: `smi` is what nvidia-smi says (None: it is
    not there), the rest what torch does, at every question the next one of `gpus`."""

    def put(smi: str | None, *gpus: list, cuda: str | None = "13.0", error: str = "") -> None:
        answers = iter(gpus)

        def run(command, **_):
            said = smi
            if "-L" not in command:
                said = json.dumps({"cuda": cuda, "gpus": next(answers, [])})
            return types.SimpleNamespace(returncode=int(bool(error)), stdout=said, stderr=error)

        monkeypatch.setattr("shutil.which", lambda _: smi and "nvidia-smi")
        monkeypatch.setattr("subprocess.run", run)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    find_gpus.cache_clear()
    yield put
    find_gpus.cache_clear()


@pytest.mark.parametrize(("limit", "sizes"), [("", [24_564, 12_288]), ("16384", [16_384, 12_288])])
def test_cards_are_found_with_what_is_free(driver, monkeypatch, limit, sizes):
    driver(LISTED, [RTX_4090, RTX_3060])
    if limit:
        monkeypatch.setenv("UNSLOTHRL_CARD_MB", limit)
    found = Machine.detect()
    assert found.gpu_problem is None and [gpu.memory_mb for gpu in found.gpus] == sizes
    assert [gpu.physical_mb for gpu in found.gpus] == [24_564, 12_288]
    assert (found.gpus[1].free_mb, found.gpus[1].uuid) == (11_400, "GPU-1")


def test_a_ray_worker_that_is_used_again_looks_for_its_gpu_again(driver, monkeypatch):
    """Ray may give a process another GPU than the one that it had for its last task."""
    context = types.SimpleNamespace(get_accelerator_ids=lambda: {"GPU": ["0"]})
    ray = types.SimpleNamespace(get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    driver(LISTED, [RTX_4090], [RTX_3060])
    assert [on_node.card(None)["gpu"]["uuid"] for _ in range(2)] == ["GPU-0", "GPU-1"]


OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 12040)."


@pytest.mark.parametrize(
    ("smi", "visible", "says", "why"),
    [
        (LISTED, "", {}, None),
        (LISTED, "7", {}, "names none of its 1"),
        (LISTED, None, {"error": OLD}, OLD),
        (LISTED, None, {"cuda": None}, "torch is a build for the CPU alone"),
        (LISTED, None, {}, "the driver may be too old"),
        ("NVIDIA-SMI has failed", None, {}, "nvidia-smi: NVIDIA-SMI has failed"),
    ],
)
def test_a_card_that_cannot_be_used_says_why(driver, monkeypatch, smi, visible, says, why):
    driver(smi, **says)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus, problem = find_gpus()
    assert gpus == () and (problem is None if why is None else why in problem)


# What a process may take of a card and what it has taken, with the driver's answers made up

BYTES = 2**30  # a GB


def pynvml(**used: int | None) -> Mock:
    """Of nvidia-ml-py, on a machine where processes use so much of the card."""
    pids = {"mine": os.getpid(), "other": os.getpid() + 1}
    found = [types.SimpleNamespace(pid=pids[k], usedGpuMemory=v) for k, v in used.items()]
    calls = ("nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetComputeRunningProcesses")
    return Mock(spec=calls, **{f"{calls[2]}.return_value": found})


@pytest.fixture
def own_card(monkeypatch):
    """-> a function that puts a card of so many GB into torch.cuda; it returns what was limited."""

    def put(total: int, free: int = 0, nvml: Mock | None = None) -> list[float]:
        limited: list[float] = []
        properties = types.SimpleNamespace(total_memory=total * BYTES, uuid="1234-abcd")
        driver = types.SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            current_device=lambda: 0,
            get_device_properties=lambda device: properties,
            mem_get_info=lambda *device: (free * BYTES, total * BYTES),
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
def test_the_limit_is_a_share_of_the_real_card(
    total, limit, unmapped, fraction, own_card, monkeypatch
):
    monkeypatch.setenv(CARD_LIMIT, limit)
    limited = own_card(total)
    memory.limit_card_memory(unmapped)
    assert limited == [pytest.approx(fraction)]
    assert variables.of_workers(2, True)[CARD_LIMIT] == limit  # it reaches every worker


def test_the_drivers_figure_is_this_processes(own_card):
    nvml = pynvml(other=9 * BYTES, mine=3 * BYTES)
    own_card(24, free=10, nvml=nvml)
    assert memory.peak_memory_mb() == 3072
    nvml.nvmlDeviceGetHandleByUUID.assert_called_with("GPU-1234-abcd")
    own_card(24, free=10, nvml=pynvml(mine=BYTES))
    assert memory.peak_memory_mb() == 3072  # the peak


@pytest.mark.parametrize("nvml", [None, pynvml(), pynvml(other=9 * BYTES), pynvml(mine=None)])
def test_where_nvml_hides_processes_it_is_what_is_not_free(nvml, own_card):
    own_card(24, free=10, nvml=nvml)
    assert memory.peak_memory_mb() == 14 * 1024

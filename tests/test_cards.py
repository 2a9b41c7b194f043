"""From what a driver says to what each engine asks for, on machines that are not here."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from few_cases import few
from layouts import GB, LAYOUTS, ONE_ACTOR, card, machine_of, placed, resolved

from unslothrl.cluster import build, on_node
from unslothrl.errors import UserError
from unslothrl.planning.engine_memory import ON_A_CARD, EngineMemory
from unslothrl.planning.forecast import forecast_of
from unslothrl.planning.placement import ProcessPlan
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Gpu, card_limit_mb, find_gpus
from unslothrl.weights import shapes

ROOT = Path(__file__).parents[1]


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
    """In the order of the start, with what the plan says that each process takes."""
    config, machine = resolved(name)
    assert forecast_of(config, shapes.shape_of(config.model), machine).fits
    for used in placed(config, machine).cards:
        free = used.gpu.free_mb
        for plan in used.processes:
            free -= ON_A_CARD["context"]
            on_card(used.gpu, free)
            memory = build.engine_memory(plan)
            assert memory == plan.engine()
            if memory:
                check_parts(plan, memory, free)
            asleep = len(used.processes) > 1 and plan.takes_turns
            kept = plan.needs.updating_mb() if asleep else plan.needs.generating_mb()
            free -= kept - ON_A_CARD["context"]
            assert free >= 0


def check_parts(plan: ProcessPlan, memory: EngineMemory, free_mb: float) -> None:
    """The parts of the plan are what vLLM is given, and its start check passes."""
    assert memory.utilisation * plan.gpu.physical_mb <= free_mb
    parts = plan.needs.generating
    if memory.kv_cache_mb is not None:
        assert parts["KV cache"] == memory.kv_cache_mb
        return
    adapter = parts.get("adapter", parts.get("engine's adapter"))
    engine = parts["weights"] + adapter + parts["activations"] + parts["KV cache"]
    assert engine == pytest.approx(memory.utilisation * plan.gpu.physical_mb)


def test_what_cannot_fit_is_said_before_anything_starts():
    machine = machine_of((card(16),))
    resolved = resolve(ONE_ACTOR, machine)  # the learner draws as well
    config = resolved.config
    assert not forecast_of(config, shapes.shape_of(config.model), machine).fits
    assert any("this may run out of memory" in note for note in resolved.notes)


def test_a_worker_knows_its_card_by_its_id(on_card):
    """What others used before counts, not what our own processes have taken since."""
    machine = machine_of((card(24, used_mb=1100, index=0), card(80, index=1)))
    config = resolve({"number_of_actors": "1"}, machine).config
    _, actor = placed(config, machine).processes
    assert actor.gpu == machine.gpus[0]
    on_card(machine.gpus[0], 23 * GB)
    first = build.engine_memory(actor)
    assert first.utilisation == pytest.approx(0.95 - 1600 / (24 * GB), abs=0.001)
    on_card(machine.gpus[1], 79 * GB)  # another one than planned
    assert build.engine_memory(actor) == EngineMemory(None, 0.91, 16_384)


@pytest.mark.parametrize("text", ["0", "16GB"])
def test_a_limit_that_is_no_size_is_refused(text, monkeypatch):
    monkeypatch.setenv("UNSLOTHRL_CARD_MB", text)
    with pytest.raises(UserError, match=f"UNSLOTHRL_CARD_MB must be MB .* got {text}: set"):
        card_limit_mb()


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


# What the driver says, through a program and a process of its own


TORCH = """
import json, os
_said = json.loads(os.environ["FAKE_TORCH"])
class version: cuda = _said.get("cuda", "13.0")
class cuda:
    @staticmethod
    def _cards():
        names, visible = _said["cards"], os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return names
        found = []
        for one in visible.split(","):
            if not one.strip().isdecimal() or int(one) >= len(names):
                break  # as CUDA does: the first that is not there ends the list
            found.append(names[int(one)])
        return found
    @classmethod
    def device_count(cls):
        return len(cls._cards())
    @classmethod
    def get_device_properties(cls, i):
        if "error" in _said:
            raise RuntimeError(_said["error"])
        name, total, free, capability = cls._cards()[i]
        return type("P", (), dict(name=name, total_memory=total << 20, major=capability[0],
                                  minor=capability[1], uuid="GPU-%d" % i))
    @classmethod
    def mem_get_info(cls, i):
        name, total, free, capability = cls._cards()[i]
        return free << 20, total << 20
"""

DETECT = """
import json, dataclasses
from unslothrl.system.machine import Machine
found = Machine.detect()
gpus = [dataclasses.asdict(gpu) for gpu in found.gpus]
print(json.dumps({"gpus": gpus, "why": found.gpu_problem}))
"""
SIX = [["NVIDIA RTX 4090", 24_564, 24_000, [8, 9]], ["NVIDIA RTX 3060", 12_288, 11_400, [8, 6]]]
LISTED = "GPU 0: NVIDIA RTX 4090 (UUID: GPU-1)\nGPU 1: NVIDIA RTX 3060 (UUID: GPU-2)"


@pytest.fixture
def driver(tmp_path):
    """-> a function: what a program says on a machine with such a driver, `smi` being the answer of
    nvidia-smi (None: not there) and the rest that of torch."""

    def ask(program: str, smi: str | None, env: dict[str, str] | None = None, **torch_says):
        (tmp_path / "site").mkdir(exist_ok=True)
        (tmp_path / "site/torch.py").write_text(TORCH)
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        if smi is not None:
            (folder / "said").write_text(smi)
            (folder / "nvidia-smi").write_text(f"#!/bin/sh\ncat {folder}/said\n")
            (folder / "nvidia-smi").chmod(0o755)
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "UNSLOTHRL"))},
            "PATH": f"{folder}:/usr/bin:/bin",
            "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}",
            "FAKE_TORCH": json.dumps({"cards": [], **torch_says}),
            **(env or {}),
        }
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )

    return ask


def detected(answer) -> dict:
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.real
def test_cards_are_found_with_what_is_free(driver):
    found = detected(driver(DETECT, LISTED, cards=SIX))
    assert found["why"] is None
    assert [(gpu["memory_mb"], gpu["free_mb"], gpu["uuid"]) for gpu in found["gpus"]] == [
        (24_564, 24_000, "GPU-0"),
        (12_288, 11_400, "GPU-1"),
    ]
    found = detected(driver(DETECT, LISTED, {"CUDA_VISIBLE_DEVICES": "1"}, cards=SIX))
    assert [gpu["name"] for gpu in found["gpus"]] == ["NVIDIA RTX 3060"]
    found = detected(driver(DETECT, LISTED, {"UNSLOTHRL_CARD_MB": "8192"}, cards=SIX))
    assert [(gpu["memory_mb"], gpu["whole_mb"]) for gpu in found["gpus"]] == [
        (8192, 24_564),
        (8192, 12_288),
    ]


def test_a_ray_worker_that_is_used_again_looks_for_its_gpu_again(monkeypatch):
    """Ray may give a process another GPU than the one that it had for its last task."""
    uuids = iter(("GPU-first", "GPU-second"))

    def answer(*_, **__):
        gpu = ["NVIDIA RTX 4090", 24_564, 24_000, [8, 9], next(uuids)]
        said = json.dumps({"cuda": "13.0", "gpus": [gpu]})
        return types.SimpleNamespace(returncode=0, stdout=said, stderr="")

    context = types.SimpleNamespace(get_accelerator_ids=lambda: {"GPU": ["0"]})
    ray = types.SimpleNamespace(get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("shutil.which", lambda _: "nvidia-smi")
    monkeypatch.setattr("subprocess.run", answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = [on_node.card(None)["gpu"]["uuid"] for _ in range(2)]
    find_gpus.cache_clear()
    assert found == ["GPU-first", "GPU-second"]


OLD = "The NVIDIA driver on your system is too old (found version 12040)."


@pytest.mark.real
@pytest.mark.parametrize(
    ("smi", "env", "says", "why"),
    few([
        (None, {}, {}, None),
        (LISTED, {"CUDA_VISIBLE_DEVICES": ""}, {"cards": SIX}, None),
        (LISTED, {"CUDA_VISIBLE_DEVICES": "7"}, {"cards": SIX}, "names none of its 2"),
        (LISTED, {}, {"cards": SIX, "error": OLD}, f"RuntimeError: {OLD}"),
        (LISTED, {}, {"cuda": None}, "torch is a build for the CPU alone"),
        (LISTED, {}, {}, "the driver may be too old"),
        ("NVIDIA-SMI has failed", {}, {}, "nvidia-smi: NVIDIA-SMI has failed"),
    ]),
)  # fmt: skip
def test_a_card_that_cannot_be_used_says_why(driver, smi, env, says, why):
    found = detected(driver(DETECT, smi, env, **says))
    assert found["gpus"] == []
    assert found["why"] is None if why is None else why in found["why"]


PLAN = """
import sys
from unslothrl.commands.cli import main
sys.exit(main(["plan", "--model", "Qwen/Qwen2.5-3B-Instruct", "--json"]))
"""


@pytest.mark.real
def test_the_command_plans_for_the_card_that_the_driver_names(driver):
    names = [["NVIDIA RTX 3060", 12_288, 11_388, [8, 6]]]
    env = {"HF_HUB_OFFLINE": "1"}
    found = detected(driver(PLAN, LISTED, env, cards=names))
    assert found["fits"] and found["cards"][0]["name"] == "NVIDIA RTX 3060"
    assert found["cards"][0]["usable_mb"] == 11_388
    env |= {"UNSLOTHRL_CARD_MB": "8192"}
    found = detected(driver(PLAN, LISTED, env, cards=names))
    assert found["cards"][0]["usable_mb"] == round(0.95 * 8192)

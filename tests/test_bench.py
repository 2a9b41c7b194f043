"""The machinery of bench/gpu.py: what a failure leaves behind, what a second call runs again."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
from layouts import GB, card, machine_of

from unslothrl.config.options import OPTIONS
from unslothrl.planning import fit
from unslothrl.planning.forecast import forecast_of
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Gpu
from unslothrl.weights.shapes import shape_of

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu

    monkeypatch.setattr(gpu, "HERE", tmp_path / "state")
    monkeypatch.setattr(gpu, "RAY", tmp_path / "ray")
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    return gpu


def test_every_stage_has_a_name_and_folder_of_its_own_and_flags_that_a_run_takes(gpu, tmp_path):
    from on_card import stages

    assert len({stage.slug for stage in stages.STAGES}) == len(stages.STAGES)
    for stage in stages.STAGES:
        for tiny in (False, True):
            assert set(stages.flags_of(stage, tmp_path, tiny)) <= set(OPTIONS), stage.name
        assert stage.expected_s < stage.limit_s


@pytest.mark.parametrize("sizes", [(8,), (16,), (24, 24)])
def test_the_first_stage_is_what_make_train_resolves_to(sizes, gpu):
    from on_card.stages import FIRST

    machine = machine_of(tuple(card(size, index=i) for i, size in enumerate(sizes)))
    usual = resolve({"learner": "grpo"}, machine).config
    own = resolve(FIRST | {"model": "Qwen/Qwen2.5-1.5B-Instruct"}, machine).config
    other = {name for name in OPTIONS if getattr(own, name) != getattr(usual, name)}
    fitted = {"learner_gpu_usage", "max_num_seqs", "train_batch_size", "kv_cache_mb"}
    assert other <= FIRST.keys() | fit.TASK.keys() | {"model", "run_name"} | fitted
    assert own.backend == "unsloth" and own.engine == "vllm"
    assert own.number_of_actors == len(sizes) - 1


NAMED = {
    "1.5B": "unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit",
    "3B": "unsloth/Qwen2.5-3B-Instruct-bnb-4bit",
    "7B": "unsloth/Qwen2.5-7B-Instruct-bnb-4bit",
    "8B": "unsloth/Llama-3.1-8B-Instruct-bnb-4bit",
}


def test_every_run_fits_the_smallest_gpu_that_it_is_for_but_one_that_must_not(gpu):
    from on_card.stages import STAGES

    fits = {}
    for stage in STAGES:
        if stage.kind not in ("run", "first", "killed") or stage.shape is None:
            continue
        size = min(stage.needs_gb, stage.cap_gb or stage.needs_gb) * GB
        machine = machine_of((Gpu("NVIDIA", int(0.97 * size), int(0.95 * size), (8, 9)),))
        config = resolve(stage.flags | {"model": NAMED[stage.shape]}, machine).config
        cards = forecast_of(config, shape_of(config.model), machine).placement.cards
        fits[stage.name] = all(each.fits for each in cards)
    assert {name for name in fits if not fits[name]} == {"an update too large for 8 GB, 1.5B"}
    assert len(fits) >= 8


REHEARSAL = json.loads((BENCH / "results" / "gpu-rehearsal-cpu.json").read_text())
RECORD = REHEARSAL | {
    "gpu": {
        "name": "NVIDIA GeForce RTX 3060", "memory_mb": 12288, "capability": "8.6",
        "driver": "580.95.05", "CUDA of the driver": "13.0", "compatibility library": False,
        "WSL": False,
    },
}  # fmt: skip
PRIVATE = {
    "a path": ["/home/alice/runs/1", "see ~/runs/x", "C:\\Users\\alice\\x", "(/root/.cache/a)"],
    "an address": ["10.0.0.17", "http://192.168.1.5:8265"],
    "an id": ["GPU-8f3b1f6e-0f57-4a2b-9c2e-0d1c2b3a4f5e"],
    "a mail address": ["alice@example.org"],
    "a token": ["hf_abcdefghijklmnopqrstuvwxyz"],
}


@pytest.mark.parametrize(("kind", "text"), [(k, text) for k in PRIVATE for text in PRIVATE[k]])
def test_what_is_private_is_found_wherever_it_stands_and_is_hidden(kind, text, gpu):
    from on_card import record

    assert record.problems(RECORD) == [] and record.hidden(RECORD["stages"]) == RECORD["stages"]
    for field, value in (("error", text), ("result", {"said": [text]}), ("result", {text: 1})):
        content = copy.deepcopy(RECORD)
        content["stages"][-1][field] = value
        assert any(problem.startswith(kind) for problem in record.problems(content))
        content["stages"] = record.hidden(content["stages"])
        assert record.problems(content) == []


def test_the_rehearsal_that_is_committed_has_the_form(gpu):
    from on_card import record
    from on_card.stages import STAGES

    assert record.problems(REHEARSAL) == []
    statuses = {stage["name"]: stage["status"] for stage in REHEARSAL["stages"]}
    assert list(statuses) == [stage.name for stage in STAGES]
    assert {name for name in statuses if statuses[name] != "good"} == {"GSM8K, Qwen2.5-1.5B"}


def test_a_comparison_without_its_peer_names_the_command(tmp_path):
    """An environment that has this project's packages and no peers."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    command = [tmp_path / "env" / "bin" / "python", BENCH / "compare_trl.py", "--no_write"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "run python tools/peers.py trl" in done.stderr

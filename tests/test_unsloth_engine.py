"""The learner's own engine as one GPU has it, as far as a CPU goes: `make unsloth-test`."""

import json
from pathlib import Path

import families
import pytest
from conftest import run_script

from unslothrl import embedded
from unslothrl.weights import base_model
from unslothrl.weights.shapes import SHARED

ROOT = Path(__file__).parents[1]
CPU_VLLM = ROOT / ".venv-gpu-set" / "cpu-vllm"

pytestmark = pytest.mark.slow


def found_of(base: Path, folder: Path, *options: str) -> dict:
    """What unsloth_engine_on_cpu.py found."""
    assert CPU_VLLM.is_dir(), "run by `make unsloth-test`, which makes the GPU set's environment"
    out = folder / "found.json"
    variables = {"first": str(CPU_VLLM), "TRITON_INTERPRET": "1"}
    run_script("unsloth_engine_on_cpu.py", base, out, *options, cwd=folder, **variables)
    return json.loads(out.read_text())


def check(found: dict, linears: int) -> None:
    assert found["fingerprints"][0] == found["fingerprints"][1]
    assert found["on vLLM's bytes"] == found["4-bit layers"] == linears
    assert found["as before"]
    assert found["gap"] < 0.015  # bfloat16, and LoRA's products in another order
    assert found["with a gradient"] == [2 * linears] * 2


def test_unsloth_trains_on_the_tensors_of_its_vllm(tmp_path):
    """Loaded by Unsloth's load_vllm: one copy of the base, canary, read-back, completions from the
    published adapter, and a gradient for every tensor of the LoRA."""
    check(found_of(base_model.prepare(embedded.EMBEDDED), tmp_path), 7 * 4)


@pytest.mark.parametrize(("name", "linears"), [("Phi-4", 8), ("Gemma 3", 14)])
def test_it_does_so_for_other_families(name, linears, tmp_path, own_cache):
    """Of two layers. The attention that Unsloth chooses for Gemma 3 has no gradients on a CPU."""
    whole = families.saved(tmp_path / "whole", families.built(families.TRAINED[name]()))
    base = base_model.prepare(str(whole))
    assert json.loads((base / "config.json").read_text())["model_type"] in SHARED
    check(found_of(base, tmp_path, "eager"), linears)

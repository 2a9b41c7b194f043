"""The learner's own engine as one GPU has it, as far as a CPU goes: `make unsloth-test`."""

import json
import os
from pathlib import Path

import pytest
from conftest import run_script

from unslothrl import embedded
from unslothrl.weights import base_model

ROOT = Path(__file__).parents[1]
CPU_VLLM = ROOT / ".venv-gpu-set" / "cpu-vllm"

pytestmark = pytest.mark.slow


def test_unsloth_trains_on_the_tensors_of_its_vllm(tmp_path):
    """Loaded by Unsloth's load_vllm: one copy of the base, canary, read-back, completions from the
    published adapter, and a gradient for every tensor of the LoRA."""
    assert CPU_VLLM.is_dir(), "run by `make unsloth-test`, which makes the GPU set's environment"
    base = base_model.prepare(embedded.EMBEDDED)
    paths = os.pathsep.join(map(str, (ROOT, CPU_VLLM)))
    out = tmp_path / "found.json"
    variables = {"PYTHONPATH": paths, "TRITON_INTERPRET": "1"}
    run_script("unsloth_engine_on_cpu.py", base, out, cwd=tmp_path, **variables)
    found = json.loads(out.read_text())
    assert found["fingerprints"][0] == found["fingerprints"][1]
    assert found["on vLLM's bytes"] == found["4-bit layers"] == 7 * 4
    assert found["as before"]
    assert found["gap"] < 0.015  # bfloat16, and LoRA's products in another order
    assert found["with a gradient"] == [2 * 7 * 4] * 2

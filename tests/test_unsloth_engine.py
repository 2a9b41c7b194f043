"""The learner's own engine as one GPU has it, as far as a CPU goes: `make unsloth-test`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    program = ROOT / "tests" / "unsloth_engine_on_cpu.py"
    environment = {
        **os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{CPU_VLLM}", "TRITON_INTERPRET": "1"
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(program), str(base), str(tmp_path / "found.json")],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["fingerprints"][0] == found["fingerprints"][1]
    assert found["on vLLM's bytes"] == found["4-bit layers"] == 7 * 4
    assert found["as before"]
    assert found["gap"] < 0.015  # bfloat16, and LoRA's products in another order
    assert found["with a gradient"] == [2 * 7 * 4] * 2

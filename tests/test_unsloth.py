"""Unsloth's backend against PEFT's: the same loss, the same gradients, through its fused functions.

Each in a process of its own, on a CPU under Triton's interpreter. `make unsloth-test` runs this.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
from unsloth_on_cpu import TEMPERATURE

ROOT = Path(__file__).parents[1]
LAYERS, MICRO_BATCHES = 2, 2
TOLERANCE = 2e-2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def overlay() -> Path:
    folder = Path(os.environ.get("UNSLOTHRL_UNSLOTH_SITE", Path(sys.prefix) / "unsloth-site"))
    if not (folder / "unsloth").is_dir():
        pytest.fail(f"Unsloth is not in {folder}: run `make unsloth-test`")
    return folder


@pytest.fixture(scope="module")
def results(overlay, tmp_path_factory, sixteen_bit_bases):
    """(kind of base, backend, temperature) -> (loss and counts, gradients by name), made once."""
    made: dict = {}
    folder = tmp_path_factory.mktemp("unsloth")

    def result(kind: str, backend: str, temperature: float = TEMPERATURE):
        key = (kind, backend, temperature)
        if key not in made:
            out = folder / "-".join(map(str, key))
            paths = [str(ROOT), *([str(overlay)] if backend == "unsloth" else [])]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            if backend == "unsloth":
                environment["TRITON_INTERPRET"] = "1"
            command = [sys.executable, str(ROOT / "tests" / "unsloth_on_cpu.py"), backend]
            command += [str(sixteen_bit_bases[kind]), str(out), "--disturb"]
            done = subprocess.run(
                [*command, "--temperature", str(temperature)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=900,
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
            facts = json.loads(Path(f"{out}.json").read_text())
            made[key] = facts, safetensors.torch.load_file(f"{out}.safetensors")
        return made[key]

    return result


def distances(one: dict, other: dict) -> dict[str, float]:
    """The relative distance of each gradient."""
    assert one.keys() == other.keys() and len(one) == LAYERS * 7 * 2
    return {name: ((one[name] - other[name]).norm() / other[name].norm()).item() for name in other}


@pytest.mark.parametrize("kind", ["biases", "plain"])
def test_unsloth_gives_pefts_loss_and_gradients(kind, results):
    facts, gradients = results(kind, "unsloth")
    expected_facts, expected = results(kind, "peft")
    assert facts["loss"] == pytest.approx(expected_facts["loss"], rel=TOLERANCE)
    assert max(distances(gradients, expected).values()) < TOLERANCE


@pytest.mark.parametrize("kind", ["biases", "plain"])
def test_unsloths_fused_functions_ran(kind, results):
    counts = results(kind, "unsloth")[0]["counts"]
    runs = LAYERS * MICRO_BATCHES
    qkv = 0 if kind == "biases" else runs  # Unsloth does not fuse projections that have biases
    for step in ("forward", "backward"):
        assert counts[f"LoRA_QKV.{step}"] == qkv
        assert counts[f"LoRA_W.{step}"] == runs  # the output projection
        assert counts[f"LoRA_MLP.{step}"] == runs
        assert counts[f"Fast_RoPE_Embedding.{step}"] == 2 * runs  # queries and keys
        assert counts[f"Fast_RMS_Layernorm.{step}"] == 2 * runs + MICRO_BATCHES  # and the last


@pytest.mark.parametrize("backend", ["peft", "unsloth"])
@pytest.mark.parametrize("kind", ["biases", "plain"])
def test_nothing_in_between_disturbs_the_gradients(kind, backend, results):
    assert results(kind, backend)[0]["undisturbed"]


def test_another_temperature_would_be_seen(results):
    """The comparison can fail: a learner that forgets the temperature is far outside."""
    facts, gradients = results("plain", "unsloth")
    other_facts, other = results("plain", "peft", 1.0)
    assert min(distances(gradients, other).values()) > 2 * TOLERANCE
    assert facts["loss"] != pytest.approx(other_facts["loss"], rel=TOLERANCE)

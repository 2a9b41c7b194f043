"""Unsloth's backend against PEFT's for the families that its own decoders do not serve.

Each in a process of its own, on a CPU, in the GPU set: a LoRA on every linear layer, the same loss
and gradients, and what generates is what trains. `make unsloth-test` runs this.
"""

from pathlib import Path

import families
import pytest
from test_unsloth import LOGPROB_TOLERANCE, POLICIES, run

from unslothrl.weights import decoder

pytestmark = pytest.mark.slow

CPU_VLLM = Path(__file__).parents[1] / ".venv-gpu-set" / "cpu-vllm"  # and nothing that needs a GPU
TOLERANCE = 0.05  # relative, of a gradient; measured: under 0.03
OPTIONS = {"Gemma 3": ("--attention", "eager")}  # Unsloth's choice for it has no gradients on a CPU


@pytest.mark.parametrize("name", [name for name in families.TRAINED if name != "Llama"])
def test_unsloth_gives_pefts_loss_and_gradients(name, tmp_path, own_cache):
    config = decoder.text_of(families.TRAINED[name]().to_dict())
    base = families.saved(tmp_path / "base", families.built(config))
    (expected_facts, expected), (facts, tensors) = (
        run(kind, base, tmp_path / kind, *OPTIONS.get(name, ()), first=str(CPU_VLLM))
        for kind in ("peft", "unsloth")
    )
    assert tensors.keys() == expected.keys()
    assert facts["loss"] == pytest.approx(expected_facts["loss"], rel=TOLERANCE)
    for key, found in tensors.items():
        apart = (found - expected[key]).norm() / expected[key].norm()
        assert apart < TOLERANCE, (key, apart)
    for policy in POLICIES:
        assert (tensors[policy] - expected[policy]).abs().max() < 5 * LOGPROB_TOLERANCE
    assert facts["undisturbed"] and facts["sampler_gap"] < LOGPROB_TOLERANCE

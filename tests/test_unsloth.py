"""Unsloth's backend against PEFT's: the same loss, the same gradients, through its fused functions.

Each in a process of its own, on a CPU under Triton's interpreter, in the GPU set. And what
Unsloth's choice of memory makes of our options on GPUs of several sizes. `make unsloth-test` runs
this.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
from conftest import make_base, run_script

from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE

ROOT = Path(__file__).parents[1]
LAYERS, MICRO_BATCHES = 2, 2
TOLERANCE = 2e-2  # relative, of the loss and of each gradient's norm; measured: under 1e-2
LOGPROB_TOLERANCE = 1e-2  # of each log-probability; measured: under 4e-3
POLICIES = ("policy", "reference")
# Kind of base -> the adapter that its training starts from.
STARTS = {"biases": None, "plain": "biases-peft/v000001"}
# With transformers' own initial values every token is alike, and the gradients of q and k are what
# is left of a subtraction: 3 to 7% of them rounding.
STD = {"embed_tokens": 1.0, "v_proj": 0.1, "q_proj": 0.05, "k_proj": 0.05, "bias": 0.3}

pytestmark = pytest.mark.slow


def small_base(kind: str, folder: Path) -> Path:
    """A base with biases or without, whose gradients bfloat16 can carry."""
    return make_base(
        kind, folder / kind, STD, vocab_size=320, hidden_size=64, intermediate_size=128,
        num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=512,
    )  # fmt: skip


def run(backend: str, base: Path, out: Path, *options: str, first: str = ""):
    """-> (facts, tensors) that unsloth_on_cpu.py wrote. `first`: first on its path."""
    interpreted = {"TRITON_INTERPRET": "1"} if backend == "unsloth" else {}
    given = (backend, base, out, *options)
    run_script("unsloth_on_cpu.py", *given, cwd=out.parent, first=first, **interpreted)
    facts = json.loads(Path(f"{out}.json").read_text())
    return facts, safetensors.torch.load_file(f"{out}.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("unsloth")


@pytest.fixture(scope="module")
def results(folder):
    """(kind of base, backend) -> (facts, tensors), each made once.

    Two processes at a time, since Triton's interpreter computes on one core. The plain base is
    trained from an adapter, which is then the reference policy.
    """
    first, *others = ((kind, name) for kind in STARTS for name in ("peft", "unsloth"))
    bases = {kind: small_base(kind, folder) for kind in STARTS}

    def compute(kind: str, backend: str):
        options = []
        if STARTS[kind] is not None:
            made[first].result()
            options += ["--start", str(folder / STARTS[kind])]
        return run(backend, bases[kind], folder / f"{kind}-{backend}", *options)

    with ThreadPoolExecutor(2) as pool:
        made = {first: pool.submit(compute, *first)}
        for key in others:
            made[key] = pool.submit(compute, *key)
        yield lambda kind, backend: made[kind, backend].result()


def distances(one: dict, other: dict) -> list[float]:
    """The relative distance of each gradient."""
    assert one.keys() == other.keys() and len(one) == LAYERS * 7 * 2 + len(POLICIES)
    gradients = [name for name in other if name not in POLICIES]
    return [((one[name] - other[name]).norm() / other[name].norm()).item() for name in gradients]


@pytest.mark.parametrize("kind", ["biases", "plain"])
def test_unsloth_gives_pefts_loss_and_gradients(kind, results):
    facts, tensors = results(kind, "unsloth")
    expected_facts, expected = results(kind, "peft")
    assert facts["loss"] == pytest.approx(expected_facts["loss"], rel=TOLERANCE)
    assert max(distances(tensors, expected)) < TOLERANCE
    assert facts["dtypes"] == expected_facts["dtypes"] == ["torch.float32"]


@pytest.mark.parametrize("kind", ["biases", "plain"])
def test_policy_and_reference_agree_and_are_two(kind, results):
    tensors, expected = results(kind, "unsloth")[1], results(kind, "peft")[1]
    for name in POLICIES:
        assert (tensors[name] - expected[name]).abs().max() < LOGPROB_TOLERANCE
    assert (tensors["policy"] - tensors["reference"]).abs().max() > 2 * LOGPROB_TOLERANCE


@pytest.mark.parametrize("kind", ["biases", "plain"])
def test_unsloths_fused_functions_ran(kind, results):
    counts = results(kind, "unsloth")[0]["counts"]
    runs = LAYERS * MICRO_BATCHES
    qkv = 0 if kind == "biases" else runs  # Unsloth does not fuse projections that have biases
    for step in ("forward", "backward"):
        assert counts[f"LoRA_QKV.{step}"] == qkv
        assert counts[f"LoRA_W.{step}"] == runs  # the output projection
        assert counts[f"LoRA_MLP.{step}"] == runs
        assert counts[f"Fast_RoPE_Embedding_QK.{step}"] == runs  # that of packs
        assert counts[f"Fast_RMS_Layernorm.{step}"] == 2 * runs + MICRO_BATCHES  # and the last


@pytest.mark.parametrize("backend", ["peft", "unsloth"])
@pytest.mark.parametrize("kind", ["biases", "plain"])
def test_what_generates_is_what_trains_and_leaves_the_gradients_alone(kind, backend, results):
    """And no layer is checkpointed where gradients are off: Unsloth's checkpointing keeps a host
    buffer for every one until the next backward pass."""
    facts = results(kind, backend)[0]
    assert facts["undisturbed"] and facts["sampler_gap"] < LOGPROB_TOLERANCE
    assert facts["checkpointed"] == {"training": LAYERS, "measuring": 0}


@pytest.mark.parametrize("kind", ["biases", "plain"])
def test_the_critic_is_pefts_and_leaves_the_policy_alone(kind, results, folder):
    found = {}
    for backend in ("peft", "unsloth"):
        assert results(kind, backend)[0]["undisturbed by the critic"]
        path = folder / f"{kind}-{backend}-critic.safetensors"
        found[backend] = safetensors.torch.load_file(path)
    assert len(found["peft"]) == LAYERS * 7 * 2 + 3 and found["peft"]["values"].abs().min() > 0
    for name, expected in found["peft"].items():
        distance = (found["unsloth"][name] - expected).norm() / expected.norm()
        assert distance < TOLERANCE, name


@pytest.mark.parametrize("kind", ["biases", "plain"])
def test_both_publish_the_same_adapter(kind, results, folder):
    published = []
    for backend in ("peft", "unsloth"):
        results(kind, backend)
        published.append(folder / f"{kind}-{backend}" / "v000001")
    weights = [(path / WEIGHTS_FILE).read_bytes() for path in published]
    assert weights[0] == weights[1]
    configs = [json.loads((path / CONFIG_FILE).read_text()) for path in published]
    for key in ("peft_type", "r", "lora_alpha", "target_modules", "base_model_name_or_path"):
        assert configs[0][key] == configs[1][key]


@pytest.fixture(scope="module")
def on_cards(folder):
    """What unsloth_on_cards.py found, where the learner generates and where it only trains."""

    def found(kind: str) -> tuple[dict, str]:
        out = folder / f"cards-{kind}.json"
        paths = os.pathsep.join(map(str, (ROOT, Path(sys.prefix) / "cpu-vllm")))
        variables = {"PYTHONPATH": paths, "VLLM_PLUGINS": "", "TRITON_INTERPRET": "1"}
        said = run_script("unsloth_on_cards.py", kind, out, cwd=folder, **variables)
        return json.loads(out.read_text()), said

    kinds = ("generates", "trains")
    with ThreadPoolExecutor() as pool:
        return dict(zip(kinds, pool.map(found, kinds), strict=True))


def test_the_engine_gets_the_share_and_the_sequences_that_it_was_given(on_cards):
    """Unsloth alone would make 0.76 of 0.5 of 24 GB, and 64 of 256 sequences."""
    facts = on_cards["generates"][0]
    found = facts["arguments"]
    assert found["gpu_memory_utilization"] == pytest.approx(0.5, abs=1e-6)
    assert (found["max_num_seqs"], found["max_model_len"]) == (255, 1550)
    assert found["enable_sleep_mode"] is True
    # The whole card was asked for; 0.6 GB of it are in use, a context and graphs come on top.
    assert 0.8 < facts["too much"]["gpu_memory_utilization"] < (24 - 0.6 - 1) / 24


def test_only_a_learner_that_generates_gives_up_expandable_segments(on_cards):
    variables = {kind: facts["variables"] for kind, (facts, _) in on_cards.items()}
    assert variables["generates"]["UNSLOTH_VLLM_STANDBY"] == "1"
    assert variables["generates"]["PYTORCH_ALLOC_CONF"] is None
    assert variables["trains"]["UNSLOTH_VLLM_STANDBY"] is None
    assert variables["trains"]["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_in_one_process_unsloth_comes_before_what_it_patches(on_cards):
    for facts, output in on_cards.values():
        assert facts["imported"] and facts["imported before Unsloth"] == []
        assert "should be imported before" not in output


def test_the_engine_has_a_float32_head_and_vllms_own_sampler(on_cards):
    facts = on_cards["generates"][0]
    assert facts["levels"] == ["ERROR", "INFO", "ERROR"]  # while Unsloth loads it is INFO
    assert facts["variables"]["UNSLOTH_VLLM_NO_FLASHINFER"] == "1"
    assert facts["variables"]["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert facts["head"] == {"head_dtype": "float32"} and facts["head set late"] is False

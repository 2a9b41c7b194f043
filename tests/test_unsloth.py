"""Unsloth's backend against PEFT's: the same loss, the same gradients, through its fused functions.

Each in a process of its own, on a CPU under Triton's interpreter, in the GPU set. And what
Unsloth's choice of memory makes of our options on GPUs of several sizes. `make unsloth-test` runs
this.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch

from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE

ROOT = Path(__file__).parents[1]
LAYERS, MICRO_BATCHES = 2, 2
TOLERANCE = 2e-2  # relative, of the loss and of each gradient's norm; measured: under 1e-2
LOGPROB_TOLERANCE = 1e-2  # of each log-probability; measured: under 4e-3
POLICIES = ("policy", "reference")
# Kind of base -> the adapter that its training starts from.
STARTS = {"biases": None, "plain": "biases-peft/v000001"}
STD = {"embed_tokens": 1.0, "v_proj": 0.1, "q_proj": 0.05, "k_proj": 0.05, "bias": 0.3}

pytestmark = pytest.mark.slow


def make_base(kind: str, folder: Path) -> Path:
    """A 16-bit base, with biases (Qwen2) or "plain" (Llama), whose gradients bfloat16 can carry.

    With transformers' own initial values attention is all but uniform and every token alike: the
    gradients of q and k are what is left of a subtraction, 3 to 7% of them rounding.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    from unslothrl import embedded
    from unslothrl.weights import base_model

    sizes = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
    }
    tokenizer = base_model.load_tokenizer(embedded.BASE)
    sizes |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(1)
    if kind == "plain":
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    model = model.to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        part = next((STD[part] for part in name.split(".")[::-1] if part in STD), None)
        if part is not None:
            torch.nn.init.normal_(parameter, std=part)
    with torch.no_grad():
        model.lm_head.weight.mul_(5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(backend: str, base: Path, out: Path, *options: str):
    """-> (facts, tensors) that unsloth_on_cpu.py wrote."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if backend == "unsloth":
        environment["TRITON_INTERPRET"] = "1"
    script = str(ROOT / "tests" / "unsloth_on_cpu.py")
    done = subprocess.run(
        [sys.executable, script, backend, str(base), str(out), *options],
        env=environment,
        cwd=out.parent,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-6000:])
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
    bases = {kind: make_base(kind, folder / kind) for kind in STARTS}

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
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "unsloth_on_cards.py"), kind, str(out)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(ROOT), str(Path(sys.prefix) / "cpu-vllm"))),
                "VLLM_PLUGINS": "",
                "TRITON_INTERPRET": "1",
            },
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-6000:])
        return json.loads(out.read_text()), done.stdout + done.stderr

    kinds = ("generates", "trains")
    with ThreadPoolExecutor() as pool:
        return dict(zip(kinds, pool.map(found, kinds), strict=True))


@pytest.mark.parametrize(("card", "share"), [(8, 0.7), (12, 0.6), (16, 0.6), (24, 0.5), (80, 0.35)])
def test_the_engine_gets_the_share_and_the_sequences_that_it_was_given(card, share, on_cards):
    found = on_cards["generates"][0]["cards"][str(card)]
    assert found["gpu_memory_utilization"] == pytest.approx(share, abs=1e-6)
    assert (found["max_num_seqs"], found["max_model_len"]) == (255, 1550)
    assert found["enable_sleep_mode"] is True


def test_a_limited_card_and_one_that_is_in_use(on_cards):
    facts = on_cards["generates"][0]
    assert facts["limited"]["gpu_memory_utilization"] == pytest.approx(0.5 * 16 / 80, abs=1e-6)
    # The whole card was asked for; 0.6 GB of it are in use, a context and graphs come on top.
    assert 0.8 < facts["too much"]["gpu_memory_utilization"] < (24 - 0.6 - 1) / 24


def test_unsloth_alone_would_choose_otherwise(on_cards):
    """The tests above can fail: 0.5 of 24 GB becomes 0.76, and 256 sequences 64."""
    found = on_cards["generates"][0]["unsloth's own"]
    assert found["gpu_memory_utilization"] > 0.7
    assert found["max_num_seqs"] == 64


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
    assert facts["flashinfer"] == {"1": "0", "0": "1"}  # with our variable, and without
    assert facts["head"] == {"head_dtype": "float32"} and facts["head set late"] is False


def test_the_device_is_that_of_the_decoder(on_cards):
    """Unsloth moves an untied embedding to the host where the card is tight."""
    first_parameter, model_device = on_cards["trains"][0]["devices"]
    assert (first_parameter, model_device) == ("cpu", "meta")

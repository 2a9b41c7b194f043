"""Shared real parts, small bases of both kinds and one vLLM engine for the whole session; and what
`make quick` leaves out: tests that are marked `real`, `slow` or `gpu` or use one of these parts.
"""

import os
import re
import runpy
import signal
import tempfile

from unslothrl.system import variables

variables.apply(cpus=len(os.sched_getaffinity(0)), gpu=False)
os.environ["HF_HUB_OFFLINE"] = "1"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup this
if "PYTEST_XDIST_WORKER" not in os.environ:  # else the main process has made it for all
    # Quantised bases and downloads of these tests, none of the user's, before a library looks.
    CACHE = tempfile.TemporaryDirectory(prefix="unslothrl-tests-")
    os.environ["XDG_CACHE_HOME"] = CACHE.name
for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_TOKEN", "RAY_ADDRESS"):
    os.environ.pop(name, None)

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis
import pytest
from python_process import python

from unslothrl.records import LORA_TARGETS


@pytest.fixture(autouse=True, scope="session")
def packing_where_it_can(request):
    """PyTorch 2.13 packs bfloat16 for attention wherever oneDNN knows AMX with float16, by a kernel
    that it lacks below AVX-512 ("pack_vnni2 is only supported when avx512 is supported"): no
    processor is so, but ATEN_CPU_CAPABILITY makes one. vLLM needs oneDNN, so only attention goes
    without."""
    lowered = os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2")
    if not lowered or request.config.getoption("--quick"):
        yield
        return
    import torch
    import torch.nn.functional as F

    with pytest.MonkeyPatch.context() as patch:
        unpacked = torch.backends.mkldnn.flags(enabled=False)(F.scaled_dot_product_attention)
        patch.setattr(F, "scaled_dot_product_attention", unpacked)
        yield


@pytest.fixture(autouse=True, scope="session")
def room_on_disk():
    """What a plan says in a test does not depend on how full this disk is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unslothrl.system.machine.free_mb", lambda folder: 100_000)
        yield


REAL_PARTS = {"sixteen_bit_bases", "bases", "make_backend", "tokenizer", "vllm_engine"}  # fixtures
REAL_FILE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(real|slow|gpu)\b", re.MULTILINE)
QUICK = Path(__file__).parent / "quick"


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="no model, no Ray, no vLLM: make quick")


def pytest_configure(config):
    # The same examples everywhere, and no deadline: how long one takes is the machine's doing.
    given = {"deadline": None, "derandomize": True}
    examples = 10 if config.getoption("quick") else 50
    hypothesis.settings.register_profile("unslothrl", max_examples=examples, **given)
    hypothesis.settings.load_profile("unslothrl")
    if config.getoption("quick"):
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(QUICK), os.environ.get("PYTHONPATH")])
        )
        runpy.run_path(str(QUICK / "sitecustomize.py"))  # from here on


def pytest_ignore_collect(collection_path, config):
    """A file of real parts alone may import them, so it is not even read."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if config.getoption("quick") and is_test and REAL_FILE.search(collection_path.read_text()):
        return True
    return None


def pytest_collection_modifyitems(config, items):
    for item in items:
        if REAL_PARTS & set(item.fixturenames):
            item.add_marker(pytest.mark.real)
    if config.getoption("quick"):
        left_out = [item for item in items if item.get_closest_marker("real") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("real") is None]


SMALL = {
    "vocab_size": 320,  # the embedded tokenizer's 263 and room for what libraries add
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
# Fresh attention is all but uniform, and its gradients are rounding noise.
STD = {"bias": 0.1, "q_proj": 0.1, "k_proj": 0.1}


def make_base(kind: str, folder: Path, std: dict[str, float], **sizes: int) -> Path:
    """A random 16-bit base: with "biases" in its attention, as Qwen2 has them, or "plain", a Llama.
    `std`: of parameters by the last part of their names that is in it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    from unslothrl import embedded
    from unslothrl.weights import base_model

    tokenizer = base_model.load_tokenizer(embedded.BASE)
    sizes |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(1)
    if kind == "plain":
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    model = model.to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        part = next((part for part in name.split(".")[::-1] if part in std), None)
        if part is not None:
            torch.nn.init.normal_(parameter, std=std[part])
    with torch.no_grad():
        model.lm_head.weight.mul_(5)  # a fresh one is too flat for a LoRA to favour any token
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The folder in which a test works."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> None:
    """A test's quantised bases are its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def tokenizer():
    from unslothrl import embedded
    from unslothrl.weights import base_model

    return base_model.load_tokenizer(embedded.BASE)


@pytest.fixture(scope="session")
def sixteen_bit_bases(tmp_path_factory) -> dict[str, Path]:
    return {
        kind: make_base(kind, tmp_path_factory.mktemp(f"base-{kind}"), STD, **SMALL)
        for kind in ("biases", "plain")
    }


@pytest.fixture(scope="session")
def bases(sixteen_bit_bases) -> dict[str, Path]:
    """The same bases in NF4."""
    from unslothrl.weights import base_model

    with ThreadPoolExecutor() as pool:  # each in a process of its own
        made = pool.map(base_model.quantise, sixteen_bit_bases.values())
        return dict(zip(sixteen_bit_bases, made, strict=True))


@pytest.fixture(scope="session")
def make_backend():
    """-> a function that builds a PEFT backend whose LoRA is not zero."""

    def make(base: Path, dtype: str = "bfloat16", seed: int = 0, trained: bool = True, **more):
        import torch

        from unslothrl.backends import peft

        shape = {"rank": 8, "alpha": 16, "dropout": 0.0, "dtype": getattr(torch, dtype)}
        backend = peft.load(base, seed=seed, **{**shape, **more})
        if trained:
            torch.manual_seed(seed + 1)
            for name, parameter in backend.parameters().items():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.05)
        return backend

    return make


@pytest.fixture(scope="module")
def backend(bases, make_backend):
    return make_backend(bases["biases"])


@pytest.fixture(scope="session")
def vllm_engine(bases):
    """The one vLLM of the session, over the base with biases, with slots for three versions, and
    the head that it has on a GPU."""
    from unslothrl.engines import vllm, vllm_internals
    from unslothrl.planning.footprint import EngineMemory

    own = vllm_internals.of_cpu

    def with_float32_head(*given):
        return {**own(*given), "hf_overrides": {"head_dtype": "float32"}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_internals, "of_cpu", with_float32_head)
        engine = vllm.start(
            bases["biases"],
            dtype="bfloat16",
            context=256,
            rank=8,
            max_num_seqs=64,
            max_loras=3,
            seed=0,
            memory=EngineMemory(64),
        )
    yield engine
    engine.close()


def targets_by_layer(names) -> set[tuple[int, str]]:
    """(layer, target) of every LoRA parameter name."""
    return {
        (next(int(p) for p in name.split(".") if p.isdigit()), target)
        for name in names
        for target in LORA_TARGETS
        if f".{target}." in name
    }


def run_script(
    name: str, *arguments: object, cwd: Path, timeout=1200, first: str = "", **variables: str
) -> str:
    """Runs a file of tests/ in a process of its own, with `first` first on its path. -> what it
    printed"""
    tests = Path(__file__).parent
    path = os.pathsep.join(filter(None, map(str, (first, tests.parent, tests))))
    environ = {**os.environ, "PYTHONPATH": path, **variables}
    done = python(tests / name, *arguments, cwd=cwd, timeout=timeout, env=environ)
    return done.stdout + done.stderr

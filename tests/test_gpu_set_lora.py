"""vLLM's real LoRA layers, manager and worker of the GPU set: they hold what was published, compute
what PEFT computes, and sleep and wake with it. See `vllm_without_kernels` for what is simulated.
"""

import importlib.util
import json
import types
from multiprocessing import get_context
from pathlib import Path

import pytest
import simulated_driver
import torch
import vllm_without_kernels
from conftest import SMALL
from engine_contract import drain
from safetensors.torch import save

from unslothrl.engines.base import generate
from unslothrl.engines.readback import problem_of
from unslothrl.engines.vllm import VllmEngine, set_variables
from unslothrl.errors import AdapterMismatch
from unslothrl.records import LORA_TARGETS, Request, Sampling
from unslothrl.weights import base_model, quantise
from unslothrl.weights.adapter import Adapter, AdapterShape, write_adapter
from unslothrl.weights.published import Published

pytestmark = pytest.mark.slow

SPECIAL = {"head_dim": 32, "sliding_window": None, "eos_token_id": 1, "bos_token_id": 0}
SIZES = {**SMALL, **SPECIAL}
TIED = {"qwen2", "qwen3"}
KINDS = ["llama", "mistral", "qwen2", "qwen3"]
SLOT_RANK, LESS = 16, 3
PROMPTS = [[5, 90, 17, 200, 33], [7, 8, 9, 10, 11], [100, 4, 100, 4, 50]]
GREEDY = Sampling(temperature=1.0, top_p=1.0, top_k=1, max_new_tokens=3)
REQUESTS = [Request(str(i), tuple(prompt), i, GREEDY) for i, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module", autouse=True)
def vllm():
    simulated_driver.set_gpus(simulated_driver.H100)
    set_variables()
    with pytest.MonkeyPatch.context() as patch:
        vllm_without_kernels.replace_kernels(patch)
        vllm_without_kernels.replace_memory(patch)
        patch.setattr(base_model, "stop_token_ids", lambda base: [])
        yield


def worker(rank: int, base: Path, folder: Path, kv_heads: int) -> list[str | None]:
    """One of two workers of a split vLLM. -> what is said of the version that it has loaded, of
    another one, and of the same where a matrix of the slot is emptied."""
    simulated_driver.set_gpus(*[simulated_driver.RTX_4090] * 2)
    set_variables()
    from vllm.lora.request import LoRARequest

    patch = pytest.MonkeyPatch()
    vllm_without_kernels.replace_kernels(patch)
    # vLLM cannot repeat heads in 4 bits (`planning.dividing.problem`), which the slots do.
    changed = {"quantization": None} if kv_heads == 1 else {}
    config = vllm_without_kernels.configuration(base, rank=SLOT_RANK, workers=2, **changed)
    llm = vllm_without_kernels.Llm(config, rank, f"file://{folder}/store")
    first, second = adapter(1, kv_heads=kv_heads), adapter(2, kv_heads=kv_heads)
    (folder / str(rank)).mkdir()
    llm.add_lora(LoRARequest("first", 1, str(write_adapter(first, folder / str(rank)))))
    said = [problem_of(1, Published(each), llm.model) for each in (first, second)]
    llm.model.lora_manager.modules["model.layers.0.self_attn.qkv_proj"].lora_a_stacked[1].zero_()
    return [*said, problem_of(1, Published(first), llm.model)]


def make_base(folder: Path, kind: str, four_bit: bool, **sizes: int) -> Path:
    """A random model, whose outputs differ from token to token."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **{**SIZES, **sizes}, tie_word_embeddings=kind in TIED)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder / "16")
    if not four_bit:
        return folder / "16"
    (folder / "4").mkdir()
    quantise.main(str(folder / "16"), str(folder / "4"))
    return folder / "4"


@pytest.fixture(scope="module", params=[(k, b) for k in KINDS for b in (True, False)],
                ids=lambda p: f"{p[0]} {'NF4' if p[1] else '16 bit'}")  # fmt: skip
def base(request, tmp_path_factory):
    return make_base(tmp_path_factory.mktemp(request.param[0]), *request.param)


@pytest.fixture(scope="module")
def llm(base):
    """With two slots."""
    config = vllm_without_kernels.configuration(base, rank=SLOT_RANK, max_loras=2)
    return vllm_without_kernels.Llm(config)


@pytest.fixture
def engine(llm, base):
    engine = VllmEngine(llm, base)
    yield engine
    engine.close()
    llm.worker.model_runner.lora_manager.remove_all_adapters()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return make_base(tmp_path_factory.mktemp("qwen"), "qwen2", True)


@pytest.fixture
def main_engine(qwen):
    """A vLLM of its own, with the main job's one slot."""
    config = vllm_without_kernels.configuration(qwen, rank=SLOT_RANK)
    engine = VllmEngine(vllm_without_kernels.Llm(config), qwen)
    yield engine
    engine.close()


def shape(rank: int, kv_heads: int = 2) -> AdapterShape:
    hidden, inner, kv = SIZES["hidden_size"], SIZES["intermediate_size"], 32 * kv_heads
    ends = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (hidden, inner), "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }  # fmt: skip
    tensors = [
        (f"base_model.model.model.layers.{layer}.{module}.lora_{half}.weight", size)
        for layer in range(SIZES["num_hidden_layers"])
        for module, (inputs, outputs) in ends.items()
        for half, size in (("A", (rank, inputs)), ("B", (outputs, rank)))
    ]
    config = {
        "peft_type": "LORA", "r": rank, "lora_alpha": 24, "target_modules": list(LORA_TARGETS),
        "bias": "none", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base",
    }  # fmt: skip
    return AdapterShape(tuple(tensors), json.dumps(config))


def adapter(version: int, rank: int = SLOT_RANK, kv_heads: int = 2) -> Adapter:
    """Random in every layer, with an effect about half as large as the base's own."""
    draw, settings = torch.Generator().manual_seed(version), shape(rank, kv_heads)
    scale = {"A": 1.0, "B": 0.5 / (24 / rank)}
    tensors = {
        name: (torch.randn(size, generator=draw) * size[1] ** -0.5 * scale[name[-8]]).bfloat16()
        for name, size in settings.tensors
    }
    return Adapter.of(version, save(tensors), settings.config)


@pytest.mark.parametrize("rank", [SLOT_RANK, LESS])
def test_a_version_is_held_as_it_was_published_and_another_is_not(rank, engine, llm):
    engine.load(adapter(1, rank))  # which raises where it is not
    manager = llm.model.lora_manager
    number = engine.newest
    others = Published(adapter(2, rank))
    assert "differs from the published one in" in problem_of(number, others, llm.model)

    manager.lora_index_to_id.reverse()  # the other slot, where nothing was loaded yet
    assert "is zero, and was not published so" in problem_of(number, others, llm.model)
    manager.lora_index_to_id.reverse()

    layer = manager.modules["model.layers.1.mlp.down_proj"]
    slot = manager.lora_index_to_id.index(number)
    layer.lora_b_stacked[0][slot].zero_()
    assert problem_of(number, Published(adapter(1, rank)), llm.model) == (
        f"in slot {slot}, model.layers.1.mlp.down_proj.lora_B is zero, and was not published so"
    )
    if rank == LESS:
        layer.lora_b_stacked[0][slot].copy_(others.tensors[
            "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"
        ][:, :1])  # fmt: skip
        manager.lora_index_to_id[slot] = None


def test_logits_are_those_of_peft_under_each_of_two_versions(engine, llm, base, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    engine.load(adapter(1))
    first = engine.loaded[engine.newest]
    engine.add(REQUESTS[0])  # keeps it loaded
    engine.load(adapter(2, LESS))
    second = engine.loaded[engine.newest]
    found = llm.logits(PROMPTS, [first, second, second])
    without = llm.logits(PROMPTS, [None] * 3)
    assert [tuple(one.completion.versions) for one in drain(engine).values()] == [(1, 1, 1)]
    assert found.dtype == torch.float32

    tokens = torch.tensor(PROMPTS)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    with torch.inference_mode():
        plain = model(tokens).logits.float()
        assert (without - plain).abs().mean() < 0.03 * plain.abs().mean()
        for row, version in enumerate((adapter(1), adapter(2, LESS))):
            peft = PeftModel.from_pretrained(model, str(write_adapter(version, tmp_path)))
            expected = peft(tokens).logits.float()[row]
            assert (found[row] - expected).abs().mean() < 0.03 * expected.abs().mean()
            assert (found[row] - plain[row]).abs().mean() > 0.5 * expected.abs().mean()
            model = peft.unload()


def test_the_probe_passes(main_engine):
    main_engine.canary(shape(SLOT_RANK))
    assert not main_engine.loaded and main_engine.version == -1


def test_the_probe_sees_layers_that_compute_without_the_adapter(main_engine, monkeypatch):
    for layer in main_engine.slots.manager.modules.values():
        monkeypatch.setattr(layer, "_apply_lora_to_output", lambda x, output: output)
    with pytest.raises(AdapterMismatch, match="with a large random adapter they are as without"):
        main_engine.canary(shape(SLOT_RANK))


@pytest.fixture
def sleeps(main_engine, monkeypatch):
    """It takes turns with a learner: asleep whenever it has nothing to do."""
    main_engine.llm.move_into_gpu_memory()
    monkeypatch.setattr(main_engine, "takes_turns", True)
    yield main_engine
    main_engine.llm.free_gpu_memory()


def drawn(engine: VllmEngine) -> list[tuple[int, ...]]:
    return [tuple(each.token_ids) for each in generate(engine, REQUESTS)]


def test_what_sleeps_wakes_as_it_was(sleeps):
    sleeps.load(adapter(1))
    awake = simulated_driver.mapped_bytes()
    before = drawn(sleeps)
    assert sleeps.is_asleep and simulated_driver.mapped_bytes() == 0 < awake
    assert drawn(sleeps) == before
    sleeps.load(adapter(2))
    assert drawn(sleeps) != before
    sleeps.load(adapter(1))
    assert drawn(sleeps) == before
    assert simulated_driver.mapped_bytes() == 0


def test_slots_that_are_empty_after_a_sleep_are_seen(sleeps, monkeypatch):
    from vllm.device_allocator import cumem

    sleeps.load(adapter(1))
    sleeps.sleep()
    monkeypatch.setattr(cumem.libcudart, "cudaMemcpy", lambda *_: None)
    with pytest.raises(AdapterMismatch, match="is zero, and was not published so"):
        sleeps.wake()


def test_unsloths_manager_holds_what_was_published(qwen, monkeypatch):
    """Unsloth replaces vLLM's manager of a worker's adapters and its request."""
    from vllm.lora import request
    from vllm.v1.worker import lora_model_runner_mixin as mixin

    manager, of_unsloth = (of_unsloth_zoo(name) for name in ("worker_manager", "request"))
    monkeypatch.setattr(mixin, "LRUCacheWorkerLoRAManager", manager.LRUCacheWorkerLoRAManager)
    for module in (mixin, request):
        monkeypatch.setattr(module, "LoRARequest", of_unsloth.LoRARequest)
    config = vllm_without_kernels.configuration(qwen, rank=SLOT_RANK)
    engine = VllmEngine(vllm_without_kernels.Llm(config), qwen)
    assert type(engine.llm.worker.model_runner.lora_manager).__module__ == manager.__name__
    for version, rank in ((1, SLOT_RANK), (2, LESS)):
        engine.load(adapter(version, rank))
        problem = problem_of(engine.newest, Published(adapter(9, rank)), engine.llm.model)
        assert "differs from the published one in" in problem
    engine.close()


def of_unsloth_zoo(name: str) -> types.ModuleType:
    """A module of it, without the package, which patches the whole process."""
    package = importlib.util.find_spec("unsloth_zoo")
    path = Path(package.origin).with_name(f"vllm_lora_{name}.py")
    spec = importlib.util.spec_from_file_location(f"of_unsloth_zoo_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_each_of_two_workers_holds_its_part(kv_heads, tmp_path):
    base = make_base(tmp_path, "llama", False, num_key_value_heads=kv_heads)
    with get_context("spawn").Pool(2) as pool:
        found = pool.starmap(worker, [(rank, base, tmp_path, kv_heads) for rank in (0, 1)])
    for as_published, of_another, emptied in found:
        assert as_published is None
        assert "differs from the published one in" in of_another
        assert "layers.0.self_attn.k_proj.lora_A is zero, and was not published so" in emptied

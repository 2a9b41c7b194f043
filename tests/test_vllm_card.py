"""What vLLM 0.26.0, which the GPU set has, says of simulated GPUs, by its own code on a CPU.

`make card-test` runs this in `.venv-gpu-set`, where the whole GPU set is installed.
`simulated_driver` stands in for the driver's libraries, so that vLLM takes this for a machine with
GPUs and its compiled parts load; no kernel runs.
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import types
from dataclasses import replace

import pytest
import simulated_driver
from layouts import LAYOUTS, card, machine_of, placed, resolved, sizes_of

from unslothrl.config.options import Config
from unslothrl.config.parts import versions_in_flight
from unslothrl.engines import vllm as engine
from unslothrl.engines.readback import by_module
from unslothrl.engines.vllm_internals import EXTENSION, split_over
from unslothrl.planning import footprint as planned
from unslothrl.planning.dividing import problem
from unslothrl.planning.footprint import ON_A_CARD, EngineMemory, prefill_tokens
from unslothrl.runs.resolve import resolve
from unslothrl.weights import shapes
from unslothrl.weights.shapes import KNOWN, NF4_EXPANDED

pytestmark = pytest.mark.slow

QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "torch_dtype": "bfloat16",
    "eos_token_id": 151_645,
    "quantization_config": {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "bfloat16",
    },
}
SEVEN = KNOWN["qwen2.5-7b"]


@pytest.fixture(scope="module", autouse=True)
def one_gpu():
    """A machine whose driver lists one H100."""
    simulated_driver.set_gpus(simulated_driver.H100)
    import vllm
    from vllm.platforms import current_platform

    assert vllm.__version__ == "0.26.0" and current_platform.is_cuda()


def request(total_mb: float, free_mb: float, utilisation: float) -> int:
    """vLLM's start-up check."""
    from vllm.config import CacheConfig
    from vllm.utils.mem_utils import MemorySnapshot
    from vllm.v1.worker.utils import request_memory

    free, total = int(free_mb * 2**20), int(total_mb * 2**20)
    now = MemorySnapshot(free_memory=free, total_memory=total, device="cuda:0", auto_measure=False)
    return request_memory(now, CacheConfig(gpu_memory_utilization=utilisation))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_engine_passes_the_start_check_in_the_order_of_the_start(name):
    config, machine = resolved(name)
    for used in placed(config, machine).cards:
        free = used.gpu.free_mb
        is_shared = len(used.processes) > 1 and used.processes[0].kind == "learner"
        for plan in used.processes:
            free -= ON_A_CARD["context"]
            memory = plan.engine(used.gpu, free)
            if memory:
                request(used.gpu.physical_mb, free, memory.utilisation)
                assert plan.takes_turns == (is_shared or plan.kind == "learner")
            parts = plan.needs.generating
            assert sum(parts.values()) - ON_A_CARD["context"] <= free
            if is_shared and plan.takes_turns:  # it sleeps as soon as it is built
                parts = plan.needs.updating
                if plan.kind == "learner":  # nothing of an update is there yet
                    parts = {part: mb for part, mb in plan.needs.generating.items()
                             if part not in ("activations", "KV cache")}  # fmt: skip
            free -= sum(parts.values()) - ON_A_CARD["context"]


def test_two_engines_that_sleep_late_would_be_refused():
    """The first card path's fault: the learner's engine awake when the actor asks for its share."""
    config, machine = resolved("1x24, 7B with an actor")
    (used,) = placed(config, machine).cards
    learner = used.processes[0].needs
    free = used.gpu.free_mb - learner.generating_mb() - ON_A_CARD["context"]
    with pytest.raises(ValueError, match="less than desired"):
        request(used.gpu.physical_mb, free, config.actor_gpu_usage)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """-> the folder of a model with the sizes of Qwen2.5-7B, without weights."""
    found = tmp_path_factory.mktemp("qwen")
    (found / "config.json").write_text(json.dumps({**QWEN, **sizes_of(SEVEN)}))
    return found


@pytest.fixture(scope="module")
def options(folder):
    """What an actor of the main job on a 24 GB card beside its learner gives to vLLM."""
    machine = machine_of((card(24),))
    config = resolve({"number_of_actors": "1"}, machine).config
    (actor,) = placed(config, machine).actors
    return engine.options(
        folder,
        dtype="bfloat16",
        context=config.context,
        rank=config.max_lora_rank,
        max_num_seqs=config.sequences_at_once,
        seed=2**40,
        memory=actor.engine(),
        takes_turns=actor.takes_turns,
        on_gpu=True,
    )


def created(options):
    """vLLM's whole configuration, its options validated as `LLM` does."""
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    return EngineArgs(**options).create_engine_config(usage_context=UsageContext.LLM_CLASS)


@pytest.fixture(scope="module")
def vllm_config(options):
    return created(options)


def test_every_option_is_taken_as_it_is_meant(vllm_config, options):
    import torch

    cache, model = vllm_config.cache_config, vllm_config.model_config
    assert cache.kv_cache_memory_bytes == options["kv_cache_memory_bytes"] > 2**30
    assert cache.gpu_memory_utilization == 0.01
    assert vllm_config.scheduler_config.max_num_batched_tokens == 8192
    assert vllm_config.scheduler_config.max_num_seqs == options["max_num_seqs"]
    assert model.head_dtype == torch.float32 and model.dtype == torch.bfloat16
    assert model.quantization == "bitsandbytes"
    assert model.max_model_len == 1550 and model.enable_sleep_mode
    assert (model.logprobs_mode, model.skip_tokenizer_init) == ("processed_logprobs", True)
    assert vllm_config.lora_config.max_lora_rank == 32 and vllm_config.lora_config.max_loras == 1
    # The runner that rounds tempered logits to the head's type is the default for this model.
    assert vllm_config._is_default_v2_model_runner_model()


def test_each_version_in_flight_has_a_slot_and_a_copy(options):
    """On two cards, for the sizes of both in the plan: `memory.versions_mb`."""
    machine = machine_of((card(24), card(24, index=1)))
    config = resolve({"number_of_actors": "1", "max_staleness": "2"}, machine).config
    slots = {**options, "max_loras": versions_in_flight(config), "enable_sleep_mode": False}
    found = created(slots).lora_config
    assert (found.max_loras, found.max_cpu_loras, found.max_lora_rank) == (3, 3, 32)
    assert planned.versions_mb(config, SEVEN, 32) * 2**20 == 3 * SEVEN.lora_weights(32) * 2


def blocks(vllm_config, shape: shapes.Shape, available_mb: float) -> tuple[int, float]:
    """-> (tokens, concurrency at the longest length) of the cache that vLLM would make."""
    import torch
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    layer = FullAttentionSpec(
        block_size=16, num_kv_heads=shape.kv_heads, head_size=shape.head, dtype=torch.bfloat16
    )
    layers = {f"model.layers.{i}.self_attn.attn": layer for i in range(shape.layers)}
    available = int(available_mb * 2**20)
    (found,) = kv_cache_utils.get_kv_cache_configs(vllm_config, [layers], [available])
    concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(vllm_config, found)
    return found.num_blocks * 16, concurrency


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "qwen2.5-7b", "qwen3-4b", "llama-3.1-8b"])
@pytest.mark.parametrize("mb", [512, 4096, 40_000])
def test_the_caches_size_is_that_of_the_plan(name, mb, vllm_config):
    tokens, _ = blocks(vllm_config, KNOWN[name], mb)
    assert 0 <= mb * 2**20 - KNOWN[name].kv_bytes(tokens) < KNOWN[name].kv_bytes(16)


@pytest.mark.parametrize("seqs", [1, 8, 64, 256])
def test_a_whole_cache_holds_every_sequence(seqs, vllm_config):
    config = Config(max_num_seqs=seqs)
    assert config.context == vllm_config.model_config.max_model_len
    _, concurrency = blocks(vllm_config, SEVEN, planned.whole_cache(config, SEVEN))
    assert seqs <= concurrency <= 1.1 * seqs + 1


@pytest.mark.parametrize("name", [n for n in LAYOUTS if "actor" in n or n.startswith("2x")])
def test_no_actor_is_left_without_a_cache(name, vllm_config, monkeypatch):
    """vLLM refuses a cache that does not hold the longest sequence."""
    config, machine = resolved(name)
    shape = shapes.shape_of(config.model)
    monkeypatch.setattr(vllm_config.model_config, "max_model_len", config.context)
    for actor in placed(config, machine).actors:
        assert blocks(vllm_config, shape, actor.needs.generating["KV cache"])[1] >= 1


@pytest.mark.parametrize(
    "module", ["qwen2.Qwen2ForCausalLM", "qwen3.Qwen3ForCausalLM", "llama.LlamaForCausalLM"]
)
def test_the_read_back_tells_the_seven_matrices_of_a_layer_apart(module):
    """vLLM stacks q, k and v, and gate and up; an adapter's names must not be stacked with them."""
    file, name = module.split(".")
    model = getattr(importlib.import_module(f"vllm.model_executor.models.{file}"), name)
    parts = [*(f"self_attn.{each}_proj" for each in "qkvo"),
             *(f"mlp.{each}_proj" for each in ("gate", "up", "down"))]  # fmt: skip
    names = [f"model.layers.0.{part}" for part in parts]
    published = types.SimpleNamespace(
        tensors={f"base_model.model.{each}.lora_{half}.weight": half for each in names
                 for half in "AB"},
        scaling=lambda module: 0.5,
    )  # fmt: skip
    assert set(by_module(published, model)) == set(names)


@pytest.mark.parametrize(
    ("name", "mb"),
    [("NVIDIA RTX 4060", 8188), ("NVIDIA A100-SXM4-80GB", 81_920), ("NVIDIA H100 PCIe", 81_559),
     ("NVIDIA RTX PRO 6000", 97_887), ("NVIDIA L40S", 46_068), ("NVIDIA H200", 143_771)],
)  # fmt: skip
def test_prefill_is_what_vllm_chooses(name, mb, monkeypatch):
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    monkeypatch.setenv("FAKE_CARDS", f"{name},{mb},9.0")
    tokens, _ = EngineArgs.get_batch_defaults(world_size=1)
    gpu = replace(card(8), name=name, memory_mb=mb)
    assert prefill_tokens(gpu) == tokens[UsageContext.LLM_CLASS]
    assert EngineMemory().prefill_tokens == 8192


def test_scales_are_expanded_as_the_plan_counts():
    import bitsandbytes.functional as bnb
    import torch
    from vllm.model_executor.model_loader.bitsandbytes_loader import BitsAndBytesModelLoader

    weight = torch.randn(512, 1024)
    packed, state = bnb.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    assert state.nested
    BitsAndBytesModelLoader._dequantize_dq(None, state)
    size = packed.numel() + state.absmax.numel() * state.absmax.element_size()
    assert not state.nested and size == weight.numel() * NF4_EXPANDED


def test_an_actor_over_two_cards_is_taken_as_it_is_meant(folder, options, tmp_path, monkeypatch):
    """A 16-bit checkpoint, quantised as it loads, in processes of vLLM's own."""
    from vllm.v1.executor import Executor
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    monkeypatch.setenv("FAKE_CARDS", ";".join(["NVIDIA RTX 4090,24564,8.9"] * 2))
    settings = json.loads((folder / "config.json").read_text())
    del settings["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    alone = {**options, "model": str(tmp_path), "enable_sleep_mode": False}
    found = created({**alone, **split_over(2, 1)})
    parallel = found.parallel_config
    assert (parallel.tensor_parallel_size, parallel.world_size) == (2, 2)
    assert parallel.worker_extension_cls == EXTENSION
    assert Executor.get_class(found) is MultiprocExecutor
    assert found.model_config.quantization == found.load_config.load_format == "bitsandbytes"
    assert found.model_config.get_num_kv_heads(parallel) == SEVEN.shard(2).kv_heads == 2
    with pytest.raises(ValueError, match=r"attention heads .* divisible by tensor"):
        created({**alone, **split_over(3, 1)})
    assert problem(SEVEN, 3) == "28 attention heads"


@pytest.mark.parametrize("old", [None, "expandable_segments:True"])
def test_expandable_segments_are_off_where_what_sleeps_is_allocated(old, monkeypatch):
    """PyTorch refuses them there, and vLLM knows them by the old name of the variable alone."""
    import torch
    from vllm.device_allocator import cumem

    @contextlib.contextmanager
    def no_pool(*callbacks):
        yield (types.SimpleNamespace(snapshot=list),)

    said: list[str] = []
    monkeypatch.setattr(cumem, "use_memory_pool_with_allocator", no_pool)
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", said.append)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", old or "")  # removed at the end in any case
    if old is None:
        monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    pool = cumem.CuMemAllocator()
    with pool.use_memory_pool(tag="weights"):
        assert said == ([] if old is None else ["expandable_segments:False"])  # as it was
    said.clear()
    engine.set_variables()
    with pool.use_memory_pool(tag="weights"):
        assert said == ["expandable_segments:False"]
    assert said == ["expandable_segments:False", "expandable_segments:True"]


FOUND = """
import sys
from unslothrl.engines.vllm import set_variables
set_variables()
from vllm.utils.flashinfer import has_flashinfer
sys.modules["flashinfer"] = None  # Unsloth, when it loads its vLLM
from vllm.model_executor.warmup.flashinfer_autotune_cache import resolve_flashinfer_autotune_file
if has_flashinfer():  # vLLM's warm-up on Hopper and later
    resolve_flashinfer_autotune_file(None)
"""


def test_flashinfer_is_hidden_before_vllm_looks_for_it(tmp_path):
    """Hidden when the engine is loaded, as Unsloth alone would, it ends that engine's start with
    "No module named 'flashinfer.jit'"."""
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "__init__.py").touch()
    (tmp_path / "nvcc").write_text("#!/bin/sh\n")
    (tmp_path / "nvcc").chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name != "FAKE_CARDS"}
    environ["PATH"] = f"{tmp_path}{os.pathsep}{environ['PATH']}"
    environ["PYTHONPATH"] = str(tmp_path)
    subprocess.run([sys.executable, "-c", FOUND], env=environ, check=True)

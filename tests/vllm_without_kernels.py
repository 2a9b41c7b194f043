"""A vLLM whose kernels' work is done by PyTorch on the CPU, on the GPUs of `simulated_driver`.

vLLM's own, as on a GPU: configuration, model classes, loader, LoRA layers with their manager, the
worker and its sleep mode. Replaced: its CUDA kernels (by the PyTorch code that vLLM
has beside most of them), attention, and the scheduler, which here runs all requests in step and
computes every prefix again.
"""

import contextlib
import ctypes
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import simulated_driver
import torch

from unslothrl.engines import vllm as engine
from unslothrl.planning.footprint import EngineMemory

PUNICA = "vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU"
GLOO_ONLY = "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"


class Drawn(NamedTuple):
    logprob: float


def replace_kernels(patch: Any) -> None:
    """`patch`: pytest's monkeypatch, or one whose changes stay."""
    from vllm.lora import worker_manager  # noqa: F401
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.quantization import bitsandbytes
    from vllm.platforms import current_platform

    platform = type(current_platform)
    patch.setattr(platform, "device_type", "cpu")
    patch.setattr(platform, "get_punica_wrapper", classmethod(lambda cls: PUNICA))
    patch.setattr(platform, "get_device_communicator_cls", classmethod(lambda cls: GLOO_ONLY))
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and hasattr(module, "PIN_MEMORY"):
            patch.setattr(module, "PIN_MEMORY", False)
    patch.setattr(bitsandbytes, "apply_bnb_4bit", bitsandbytes._apply_bnb_4bit)
    patch.setattr(Attention, "forward", attention)


def replace_memory(patch: Any) -> None:
    """What vLLM's sleep mode asks of the GPU besides `simulated_driver`'s functions."""
    from vllm.device_allocator import cumem

    whole = 80 << 30
    runtime = types.SimpleNamespace(cudaMemcpy=ctypes.memmove)
    patch.setattr(cumem, "libcudart", runtime)
    patch.setattr(cumem, "PIN_MEMORY", False)
    patch.setattr(torch.accelerator, "synchronize", lambda: None)
    patch.setattr(torch.accelerator, "get_memory_info", lambda: (
        whole - simulated_driver.mapped_bytes(), whole
    ))  # fmt: skip


def attention(self: Any, query: Any, key: Any, value: Any, **_: Any) -> torch.Tensor:
    """Causal, of sequences of one length, which lie end to end: [tokens, heads * size]."""
    rows = Llm.rows

    def heads(states: torch.Tensor) -> torch.Tensor:
        return states.view(rows, len(states) // rows, -1, self.head_size).transpose(1, 2)

    out = torch.nn.functional.scaled_dot_product_attention(
        heads(query), heads(key), heads(value), is_causal=True, scale=self.impl.scale,
        enable_gqa=True,
    )  # fmt: skip
    return out.transpose(1, 2).reshape(query.shape)


@contextlib.contextmanager
def groups_on_the_cpu() -> Iterator[None]:
    """vLLM's process groups, made inside it, exchange tensors of the CPU."""
    from vllm.platforms import current_platform

    with pytest.MonkeyPatch.context() as patch:
        for name in ("is_cuda_alike", "use_custom_op_collectives"):
            patch.setattr(type(current_platform), name, lambda self: False)
        yield


def configuration(
    base: Path, *, rank: int, max_loras: int = 1, workers: int = 1, **changed: Any
) -> Any:
    """vLLM's configuration for the options that we give it on a GPU."""
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    options = engine.options(
        base, dtype="bfloat16", context=128, rank=rank, max_num_seqs=16, seed=0,
        memory=EngineMemory(512, 0.01, 256), takes_turns=workers == 1,
        on_gpu=True, max_loras=max_loras, workers=workers,
    )  # fmt: skip
    options |= {"enforce_eager": True, "compilation_config": {"custom_ops": ["none"]}, **changed}
    return EngineArgs(**options).create_engine_config(UsageContext.LLM_CLASS)


class Llm:
    """What `VllmEngine` uses of vLLM's `LLM` and `LLMEngine`."""

    rows = 1  # of the batch that is computed

    def __init__(self, config: Any, rank: int = 0, store: str = "tcp://127.0.0.1:0"):
        from vllm.config import set_current_vllm_config
        from vllm.distributed import init_distributed_environment, initialize_model_parallel
        from vllm.model_executor.model_loader import get_model
        from vllm.v1.worker import lora_model_runner_mixin as mixin
        from vllm.v1.worker.gpu_worker import Worker

        self.config, self.llm_engine, self.engine_core = config, self, None
        self.output_processor = types.SimpleNamespace(request_states={})
        self.requests: dict[str, tuple[list[int], Any, Any]] = {}
        ways = config.parallel_config.tensor_parallel_size
        with set_current_vllm_config(config):
            if not torch.distributed.is_initialized():
                with groups_on_the_cpu():
                    init_distributed_environment(ways, rank, store, rank, backend="gloo")
                    initialize_model_parallel(ways, 1)
            runner = mixin.LoRAModelRunnerMixin()
            model = get_model(vllm_config=config)
            runner.model = runner.load_lora_model(model, config, torch.device("cpu"))
        runner.post_kv_cache_wake_up = lambda: None
        self.worker = Worker.__new__(Worker)  # whose __init__ would start its GPU
        self.worker.vllm_config, self.worker.model_runner = config, runner
        self.worker._sleep_saved_buffers, self.worker._sleep_mode_backend = {}, None
        self.worker._sleep_rebuild_draft_metadata_buffers = False
        self.add_lora, self.remove_lora = self.worker.add_lora, self.worker.remove_lora
        self.sleep, self.wake_up = self.worker.sleep, self.worker.wake_up

    def move_into_gpu_memory(self) -> None:
        """The weights and the LoRA's slots, as vLLM allocates them where it can sleep, and a KV
        cache of 4 MB."""
        from vllm.device_allocator import cumem

        pool = cumem.CuMemAllocator.get_instance()
        cumem.init_module(pool.python_malloc_callback, pool.python_free_callback)
        malloc = ctypes.CDLL(cumem.lib_name).my_malloc
        malloc.restype = ctypes.c_void_p
        malloc.argtypes = ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
        pool.current_tag = "weights"
        for tensor in self.tensors():
            data = tensor.data.as_subclass(torch.Tensor)
            size = data.numel() * data.element_size()
            place = (ctypes.c_char * size).from_address(malloc(size, 0, None))
            tensor.data = torch.frombuffer(place, dtype=data.dtype).view(data.shape).copy_(data)
        pool.current_tag = "kv_cache"
        malloc(4 << 20, 0, None)

    def free_gpu_memory(self) -> None:
        """Its tensors must not be touched any more."""
        from vllm.device_allocator import cumem

        pool = cumem.CuMemAllocator.instance
        for data in pool.pointer_to_data.values():
            if not data.is_asleep:
                cumem.unmap_and_release(data.handle)
        pool.pointer_to_data.clear()

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from self.model.parameters()
        for parameter in self.model.parameters():
            for state in getattr(parameter, "bnb_quant_state", {}).values():
                yield state.absmax
        for layer in self.model.lora_manager.modules.values():
            yield from (*layer.lora_a_stacked, *layer.lora_b_stacked)

    @property
    def model(self) -> Any:
        return self.worker.model_runner.model

    def apply_model(self, function: Callable[[Any], Any]) -> list[Any]:
        return [function(self.model)]

    def add_request(self, id: str, prompt: Any, sampling: Any, lora_request: Any) -> str:
        self.requests[id] = (list(prompt["prompt_token_ids"]), sampling, lora_request)
        return id

    def step(self) -> list[Any]:
        """Finishes every request, by its likeliest tokens."""
        requests, self.requests = self.requests, {}
        tokens = [list(ids) for ids, _, _ in requests.values()]
        adapters = [adapter for _, _, adapter in requests.values()]
        for _ in range(
            max((sampling.max_tokens for _, sampling, _ in requests.values()), default=0)
        ):
            logits = self.logits(tokens, adapters)[:, -1]
            for row, token in zip(tokens, logits.argmax(-1).tolist(), strict=True):
                row.append(token)
        return [
            output(id, row[len(ids) : len(ids) + sampling.max_tokens])
            for (id, (ids, sampling, _)), row in zip(requests.items(), tokens, strict=True)
        ]

    @torch.inference_mode()
    def logits(self, tokens: Sequence[Sequence[int]], adapters: Sequence[Any]) -> torch.Tensor:
        """[sequences, tokens, vocabulary], of sequences of one length, each under its adapter, or
        all under none: PyTorch's version of the LoRA kernels knows no batch that has both."""
        from vllm.forward_context import set_forward_context

        Llm.rows, length = len(tokens), len(tokens[0])
        ids = [adapter.lora_int_id if adapter else 0 for adapter in adapters]
        of_tokens = tuple(id for id in ids for _ in range(length))
        self.worker.model_runner._set_active_loras(
            of_tokens, of_tokens, {adapter for adapter in adapters if adapter}
        )  # every token is asked for, so a "prompt" of vLLM's mapping is a token
        positions = torch.arange(length).repeat(Llm.rows)
        with set_forward_context(None, self.config):
            states = self.model(torch.tensor(tokens).flatten(), positions, None, None)
            return self.model.compute_logits(states).view(Llm.rows, length, -1)


def output(id: str, tokens: Sequence[int]) -> Any:
    """As a RequestOutput; log-probabilities are not asked for."""
    completion = types.SimpleNamespace(
        token_ids=tokens, logprobs=[{token: Drawn(0.0)} for token in tokens], finish_reason="length"
    )
    return types.SimpleNamespace(request_id=id, finished=True, outputs=[completion])

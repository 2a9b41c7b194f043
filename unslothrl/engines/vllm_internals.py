"""How vLLM is started, and what its interface does not offer: what it has done for a request that
is not finished, one engine at a time that sleeps or wakes on a GPU, a start that compiles nothing
in vain.

What is read of it: `LLMEngine.output_processor.request_states`, and `requests` of the scheduler
(v1/core/sched/scheduler.py), which is in this process (`variables.OF_VLLM`).
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from unslothrl.config.parts import vllm_rank
from unslothrl.planning.footprint import EngineMemory
from unslothrl.system.cpu_products import multiply_in_float32
from unslothrl.system.variables import VISIBLE
from unslothrl.weights.base_model import read_config
from unslothrl.weights.published import PackedWeights

CPU_BLOCK = 32  # tokens; of vLLM's 128 a turn of an episode would seldom find one that is cached
SPLIT_PREFILL = 512  # tokens of a batch of several workers on CPUs
UNCOMPILED = "do_not_compile"
SPLIT_BY_INPUT = ("o_proj", "down_proj")  # the others are split by output
EXTENSION = "unslothrl.engines.vllm_split.EndsWithItsActor"


def is_hybrid(base: Path) -> bool:
    """Whether the checkpoint in a folder has layers that keep a state."""
    return "linear_attention" in (read_config(base).get("layer_types") or ())


def has_begun(engine: Any, internal_id: str) -> bool:
    """Whether `engine`, an LLMEngine, has computed anything for the request. One that it knows
    nothing of has begun: it is finished, or its scheduler is in another process."""
    from vllm.v1.request import RequestStatus

    core = getattr(engine.engine_core, "engine_core", None)
    request = core and core.scheduler.requests.get(internal_id)
    return request is None or request.status != RequestStatus.WAITING


def taken_back(engine: Any, internal_id: str) -> Any:
    """Ends the request in `engine`. -> its CompletionOutput so far; None where it has finished in
    a step that was interrupted before it said so."""
    from vllm.v1.engine import FinishReason

    # vLLM's abort gives no output but to a server's queue (v1/engine/output_processor.py).
    state = engine.output_processor.request_states.get(internal_id)
    if state is None:
        return None
    output = state.make_request_output(
        new_token_ids=[], pooling_output=None, finish_reason=FinishReason.ABORT, stop_reason=None
    )
    engine.abort_request([internal_id], internal=True)
    return output.outputs[0]


def sleep_lock(folder: str | None) -> FileLock:
    """Inside it no other engine of this user sleeps or wakes on the same GPU: vLLM ends its process
    where less of the GPU is free after it has gone to sleep than before
    (v1/worker/gpu_worker.py:220). It is free again when its process ends, however."""
    card = os.environ.get(VISIBLE, "0").replace("/", "-")
    path = Path(folder or tempfile.gettempdir()) / f"unslothrl-{os.getuid()}-card-{card}.lock"
    return FileLock(path, mode=0o600)


def hide_flashinfer() -> None:
    """Before vLLM is imported. Where nvcc is, vLLM takes FlashInfer for usable, and on Hopper and
    later tunes it when it starts (model_executor/warmup/kernel_warmup.py:120)."""
    sys.modules.setdefault("flashinfer", None)  # type: ignore[arg-type]


def leave_out_router_kernels() -> None:
    """Before vLLM starts. On Hopper and later it compiles 17 kernels for routers of DeepSeek and
    Inkling, whatever the model, where it finds CuTe (kernel_warmup.py:123): 10 s, kept nowhere."""
    from vllm.model_executor.kernels.linear.cute_dsl import ll_bf16

    ll_bf16._cutedsl_available = False


def multiply_on_cpu() -> None:
    """Before vLLM starts on a CPU, where its LoRA layers copy an adapter's matrix for each token
    (lora/ops/torch_ops/lora_ops.py), which is half the time of a small model."""
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    multiply_in_float32()
    lora_ops.bgmv_shrink = punica_cpu.bgmv_shrink = shrink
    lora_ops.bgmv_expand_slice = punica_cpu.bgmv_expand_slice = expand_slice


def shrink(
    inputs: torch.Tensor,
    lora_b_weights: torch.Tensor,
    output_tensor: torch.Tensor,
    lora_indices_tensor: torch.Tensor,
    scaling: float = 1.0,
) -> None:
    """[tokens, in] by each token's own of [slots, 1, rank, in] -> [tokens, rank]."""
    found = by_slot(inputs, lora_b_weights, lora_indices_tensor, output_tensor.dtype)
    output_tensor[:, : found.shape[1]] = scaling * found


def expand_slice(
    inputs: torch.Tensor,
    lora_b_weights: torch.Tensor,
    output_tensor: torch.Tensor,
    lora_indices_tensor: torch.Tensor,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    """[tokens, rank] by each token's own of [slots, 1, size, rank] -> a part of [tokens, out]."""
    found = by_slot(inputs, lora_b_weights, lora_indices_tensor, output_tensor.dtype)
    part = output_tensor[:, slice_offset : slice_offset + slice_size]
    part.copy_(part + found if add_inputs else found)


def by_slot(
    x: torch.Tensor, weights: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    used = slots.unique().tolist()
    found = x.new_empty(len(x), weights.shape[-2], dtype=dtype)
    for slot in used:
        rows = slice(None) if len(used) == 1 else slots == slot
        weight = weights[slot].view(weights.shape[-2:]).to(dtype)
        found[rows] = x[rows].to(dtype) @ weight.T
    return found


def options(
    base: Path,
    *,
    dtype: Any,
    context: int,
    rank: int,
    max_num_seqs: int,
    seed: int,
    memory: EngineMemory,
    takes_turns: bool,
    on_gpu: bool,
    max_loras: int = 1,
    workers: int = 1,
    stages: int = 1,
) -> dict[str, Any]:
    """The keywords of vLLM's `LLM`.

    `max_loras` is the number of versions that are drawn under at once, each in a slot of its own.
    `workers`: the processes, each with a GPU, that the model is split over; `base` is a 16-bit
    checkpoint then, of which each quantises its part. `stages`: those, each with a GPU, that its
    layers are divided among; `base` is in 4 bits.
    """
    return {
        "model": str(base),
        "dtype": dtype,
        "max_model_len": context,
        "max_num_seqs": max_num_seqs,
        "enforce_eager": not on_gpu,
        "enable_lora": True,
        "max_lora_rank": vllm_rank(rank),
        "max_loras": max_loras,
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,  # token ids in, token ids out
        "generation_config": "vllm",  # the model's own top-k or penalties would bias the ratio
        "seed": seed % 2**31,
        "kv_cache_memory_bytes": memory.kv_cache_mb * 2**20 if memory.kv_cache_mb else None,
        "enable_sleep_mode": takes_turns and on_gpu,
        **(split_over(workers, stages) if workers * stages > 1 else {}),
        **(of_gpu(memory, max_num_seqs) if on_gpu else of_cpu(memory, context, workers * stages)),
        # Of layers that keep states vLLM caches a prompt's only where it prefills in chunks.
        **({"enable_prefix_caching": False} if is_hybrid(base) and not on_gpu else {}),
    }


def split_over(workers: int, stages: int) -> dict[str, Any]:
    """Processes of vLLM's own, children of this one: under Ray vLLM would start Ray actors instead,
    and ask for GPUs that this process has been given already."""
    return {
        "tensor_parallel_size": workers,
        "pipeline_parallel_size": stages,
        "distributed_executor_backend": "mp",
        "quantization": "bitsandbytes",
        "worker_extension_cls": EXTENSION,
    }


def of_gpu(memory: EngineMemory, max_num_seqs: int) -> dict[str, Any]:
    """vLLM 0.26 samples on a GPU by its new model runner, which divides logits by the temperature
    in the head's own type (v1/worker/gpu/sample/sampler.py:162): in bfloat16 the reported
    log-probabilities would be off by 0.01 a token. With a LoRA too the head has the type that is
    set (lora/layers/logits_processor.py:156)."""
    return {
        "hf_overrides": {"head_dtype": "float32"},
        "cudagraph_capture_sizes": graph_sizes(max_num_seqs),
        "gpu_memory_utilization": memory.utilisation,
        "max_num_batched_tokens": memory.prefill_tokens,
    }


def graph_sizes(max_num_seqs: int) -> list[int]:
    """The batch sizes, in tokens, of vLLM's CUDA graphs; a batch runs by that of the next size.

    vLLM captures each for batches with adapters and without, of new tokens alone and of prompts
    too. For 255 sequences it would choose 50 sizes, 168 graphs, the largest for new tokens alone of
    248; these are 19, 76 graphs, up to all sequences. `cudagraph_specialize_lora` would leave out
    none (v1/worker/gpu/lora_utils.py).
    """
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, max_num_seqs, 32)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


def of_cpu(memory: EngineMemory, context: int, workers: int) -> dict[str, Any]:
    """vLLM takes a request's random numbers back after a partial prefill, which a CPU's generator
    cannot do: prompts are prefilled whole there. It warms up with a whole batch, which takes
    minutes where workers wait for one another on a few cores: those get a small one."""
    prefill = memory.prefill_tokens if workers == 1 else SPLIT_PREFILL
    return {
        "enable_chunked_prefill": False,
        "block_size": CPU_BLOCK,
        "max_num_batched_tokens": max(prefill, context),
    }


def quantised_in(model: Any) -> Iterator[tuple[str, torch.Tensor, Any, bool]]:
    """(name in the checkpoint, packed bytes, bitsandbytes' `QuantState`, whether it is split by
    input) of every 4-bit matrix; vLLM lays those of q, k and v, and of gate and up, end to end."""
    fused = getattr(model, "packed_modules_mapping", {})
    for name, parameter in model.named_parameters():
        if not hasattr(parameter, "bnb_quant_state"):
            continue
        parent, _, own = name.removesuffix(".weight").removesuffix(".base_layer").rpartition(".")
        offsets = parameter.bnb_shard_offsets.tolist()
        parts = fused[own] if len(parameter.bnb_quant_state) > 1 else [own]
        for at, state in parameter.bnb_quant_state.items():
            packed = parameter.detach()[offsets[at] : offsets[at + 1]].flatten()
            yield f"{parent}.{parts[at]}", packed, state, own in SPLIT_BY_INPUT


def leave_others_alone(model: Any) -> None:
    """Where vLLM runs transformers' own class of a model (SmolLM3), it has changed that class for
    the whole process: a learner's model in it has not what the new `__call__` asks for
    (compilation/decorators.py:528)."""
    for module in model.modules():
        if UNCOMPILED in vars(module) and type(module).__module__.startswith("transformers."):
            setattr(type(module), UNCOMPILED, True)  # vLLM's own have theirs


def take_scales(base: Path, model: Any) -> None:
    """Gives the 4-bit matrices the scales of the checkpoint. vLLM has expanded them around a mean
    that is rounded to the type that it loads in (bitsandbytes' `QuantState.from_dict`), and which
    the learner has in float32: weights would differ by up to 0.4%."""
    whole = PackedWeights(base)
    for module, _, state, _ in quantised_in(model):
        if (name := f"{module}.weight") in whole.files:
            scales = whole.scales(name)
            state.absmax.copy_(scales.view_as(state.absmax))  # in place: CUDA graphs read it there

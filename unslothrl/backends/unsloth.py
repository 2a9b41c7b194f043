"""Unsloth's kernels under the same Backend: the one to train with on an NVIDIA GPU.

Has not run on a card yet. On a CPU its real code runs under Triton's interpreter, slowly, which is
how `tests/test_unsloth.py` compares it with PEFT.

What one must know of Unsloth (2026.10.7):
- it must be imported before transformers, peft and trl: it patches them for the whole process, and
  only warns when it comes late. This module is therefore imported in the learner's process alone.
- it sends statistics from `from_pretrained` and writes the code that it generates into the folder
  one stands in, unless the variables below say otherwise when it is imported.
- a 16-bit name makes it load another checkpoint (its dynamic 4-bit sibling): it is given the folder
  that everybody loads, and `use_exact_model_name`.
- rows beyond `max_seq_length` (the run's whole context here) are cut silently, unless
  `packed_seq_lengths` says that they are packs.
- its forward returns logits, and gradients through them, when `logits_to_keep` is a number, no
  labels are passed and UNSLOTH_RETURN_HIDDEN_STATES is not 1 (its GRPO trainer sets that; nothing
  here does). Attention masks are ignored in training, so padding stands on the right.
- projections with biases (q, k and v of Qwen2) run unfused, through PEFT.
- the LoRA is float32 whatever the base computes in; the fused layers cast it to what the base
  computes in, the others under autocast (`lora.lora_precision`). Under float16 losses are scaled
  (`learners.passes`), as small gradients inside the fused layers would round to zero.
- its vLLM is an `LLM` of this process with processed log-probabilities, whose 4-bit weights the
  trained model is views of. It reads adapters from folders as any vLLM does, so `VllmEngine` serves
  it. Its memory is set by a share of what is free, base included: `kv_cache_mb` does not reach it.
- with UNSLOTH_VLLM_STANDBY that vLLM can sleep: its KV cache is freed, the weights stay, for they
  are the trained model's. Expandable segments are then off, so only a learner that generates sets
  it (`build.import_unsloth`). It also replaces the share by one of its own, up to 0.88 of the
  card, unless UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE is set.
- `max_num_seqs` 256 means "choose for me" to it, as few as 8 on a small card.
- it turns FlashInfer's sampler on wherever it finds nvcc, unless UNSLOTH_VLLM_NO_FLASHINFER is set,
  and sets VLLM_LOGGING_LEVEL to INFO whatever it was.
- on a tight card it moves an untied embedding to the host and says by `model.device`, not by the
  first parameter, where the rest is.
- parts of it are AGPL-3.0 and LGPL-3.0: imported, never copied. Who passes on, or serves over a
  network, a program combined with it must meet those terms; `--backend peft` runs without it.
"""

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch  # before Unsloth, which it lets be

from unslothrl.engines import vllm_internals
from unslothrl.system.variables import OF_VLLM, kept  # importing Unsloth imports vLLM
from unslothrl.weights.base_model import cache_folder, read_config

os.environ.update(
    {
        **OF_VLLM,
        "UNSLOTH_DISABLE_STATISTICS": "1",
        "UNSLOTH_COMPILE_LOCATION": str(cache_folder().parent / "unsloth"),
        "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE": "1",  # the share is the one that is asked for
        "UNSLOTH_VLLM_FP32_LM_HEAD": "1",  # vLLM 0.26 would round logits to bfloat16
        "UNSLOTH_VLLM_NO_FLASHINFER": "1",  # see OF_VLLM
        **os.environ,  # what is set already stays
    }
)
if os.environ["UNSLOTH_VLLM_NO_FLASHINFER"] != "0":
    vllm_internals.hide_flashinfer()  # Unsloth does it later, when vLLM has found it

import unsloth  # isort: skip  (before everything that it patches)
import safetensors.torch
from peft import set_peft_model_state_dict
from unsloth.device_type import DEVICE_TYPE_TORCH
from unsloth.models.rl import patch_trl_disable_gradient_checkpointing

from unslothrl.backends import KINDS, check_patches, is_unsloths, packing
from unslothrl.backends.lora import POLICY, REFERENCE, LoraBackend, measuring
from unslothrl.backends.peft import lora_options
from unslothrl.errors import RunError, UserError
from unslothrl.system import memory
from unslothrl.weights.adapter import WEIGHTS_FILE
from unslothrl.weights.decoder import check, linears, targets
from unslothrl.weights.shapes import SHARED, not_shared

OF_LORA = re.compile(r"\.(base_layer|lora_[AB]\.\w+)$")
CHOOSE = 256  # the max_num_seqs that Unsloth takes for none


def load(
    base: Path,
    *,
    dtype: torch.dtype,
    rank: int,
    alpha: float,
    dropout: float,
    seed: int,
    context: int,
    start: Path | None = None,
    name: str | None = None,
    memory_share: float | None = None,
    max_num_seqs: int = 256,
    packs: bool = True,
    offload: str = "none",
    **loading: Any,
) -> LoraBackend:
    """Loads `base` and puts a LoRA on it; the options are those of `peft.load`.

    `context`: tokens of the longest prompt and completion. With `memory_share` Unsloth starts a
    vLLM that holds the base once for both, within that share of the whole card; it is then the
    backend's `llm`. `loading` goes to `from_pretrained`.
    """
    memory.limit_card_memory()
    lora = lora_options(rank, alpha, dropout, start)
    if memory_share is not None:
        kind = read_config(base).get("model_type", "")
        if kind not in SHARED:  # a Ministral 3 would load, and its log-probabilities be wrong
            raise not_shared(str(base), kind)
        vllm_internals.leave_out_router_kernels()
        loading |= engine_options(memory_share, max_num_seqs, lora["r"])
    if offload == "model":  # the embedding goes to the host with the rest, and comes back
        loading["offload_embedding"] = False
    model, llm = load_base(base, dtype, context, seed, loading)
    device = model.device
    model = add_lora(model, lora, device, seed, start)
    packs = packs and model.config.model_type in KINDS and packing.is_plain(model.config)
    is_own = is_unsloths(model.get_base_model())
    return LoraBackend(
        model=model,
        device=device,
        dtype=dtype,
        name=name or str(base),
        has_reference_adapter=start is not None,
        offload=offload,
        pack_inputs=functools.partial(pack_inputs, device) if packs else None,
        shares_prompts=False,  # its kernels know sequences, not trees
        for_inference=unsloth.FastLanguageModel.for_inference,
        for_training=unsloth.FastLanguageModel.for_training,
        decoder=functools.partial(Decoder, model, dtype) if is_own else model.get_base_model,
        llm=llm,
    )


def for_trainer(
    base: Path,
    *,
    dtype: torch.dtype,
    rank: int,
    alpha: int,
    dropout: float,
    seed: int,
    context: int,
    start: Path | None = None,
    like: Path | None = None,
    scores: bool = False,
    **loading: Any,
) -> Any:
    """`base` with a trainable LoRA, for a trainer that calls it as a model of transformers.

    `start`: the adapter that it begins with; `like`: one whose rank and scale it has. With `scores`
    it has a head of one output, `score`, in place of the output layer. `context`: tokens of the
    longest row. RunError as `add_lora`.
    """
    memory.limit_card_memory()
    if scores:
        loading["num_labels"] = 1
    # Beyond what the base knows Unsloth would scale its rotary embedding: another model.
    context = min(context, read_config(base).get("max_position_embeddings") or context)
    plain, _ = load_base(base, dtype, context, seed, loading)
    shape = lora_options(rank, alpha, dropout, start or like)
    if like is not None:
        shape["lora_dropout"] = dropout
    model = add_lora(plain, shape, plain.device, seed, start)
    if start is not None:  # a trainer keeps its own reference
        model.delete_adapter(REFERENCE)
    patch_trl_disable_gradient_checkpointing()  # TRL would put PyTorch's checkpointing in its place
    call_as_transformers(model.get_base_model().model)
    return model


def call_as_transformers(decoder: Any) -> None:
    """Has Unsloth's decoder know the rows of a pack by their position ids, as one of transformers
    does. No row is cut, and `measuring` holds where gradients are off."""
    plain = decoder.forward
    decoder._unsloth_allow_packed_overlength = True

    @functools.wraps(plain)
    def forward(*arguments: Any, **inputs: Any) -> Any:
        lengths = packing.row_lengths(inputs.get("position_ids"))
        if lengths is not None:
            inputs["packed_seq_lengths"] = lengths
        with measuring(decoder):
            return plain(*arguments, **inputs)

    decoder.forward = forward


def load_base(
    base: Path, dtype: torch.dtype, context: int, seed: int, loading: dict[str, Any]
) -> tuple[Any, Any]:
    """-> (the model without a LoRA, the vLLM over its weights or None); `loading`: see `load`."""
    with kept("VLLM_LOGGING_LEVEL"):
        model, _ = unsloth.FastLanguageModel.from_pretrained(
            str(base),
            max_seq_length=context,
            dtype=dtype,
            use_exact_model_name=True,
            random_state=seed,
            **{"load_in_4bit": True, **loading},
        )
    check(model, base)
    llm = getattr(model, "vllm_engine", None)
    if llm is not None:
        # Unsloth gives its vLLM a shorter context where the KV cache would not hold one sequence.
        available = llm.llm_engine.model_config.max_model_len
        if available < context:
            raise UserError(
                f"learner_gpu_usage leaves the learner's engine a context of {available} tokens, "
                f"the run needs {context}: set a larger --learner_gpu_usage, or "
                "--learner_chunk_size 0 and let the actors generate"
            )
        memory.limit_card_memory(unmapped_asleep_mb())
    return model, llm


def add_lora(
    model: Any, lora: dict[str, Any], device: torch.device, seed: int, start: Path | None
) -> Any:
    """The model with a trainable LoRA, in training mode; with `start` its weights, twice: the
    policy's and the reference's. RunError where Unsloth's patches are not in force."""
    lora = {"target_modules": targets(model), **lora}
    if not is_unsloths(model):  # otherwise it gives none to layers outside of attention and MLP
        lora["finetune_vision_layers"] = not hasattr(model, "vllm_engine")
    model = unsloth.FastLanguageModel.get_peft_model(
        model,
        **lora,
        use_gradient_checkpointing="unsloth" if device.type == "cuda" else False,
        random_state=seed,
    )
    if start is not None:
        weights = safetensors.torch.load_file(start / WEIGHTS_FILE)
        set_peft_model_state_dict(model, weights, adapter_name=POLICY)
        model.load_adapter(str(start), adapter_name=REFERENCE, is_trainable=False)
    unsloth.FastLanguageModel.for_training(model)
    check_patches(model)
    wanted, paths = set(lora["target_modules"]), linears(model.get_base_model())
    left = [p for p in paths if p.rpartition(".")[2] in wanted and not OF_LORA.search(p)]
    if left:
        raise RunError(f"Unsloth gives {left[0]} no LoRA ({len(left)} such): set --backend peft")
    return model


def pack_inputs(device: torch.device, pack: packing.Pack) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([sum(span.pieces) for span in pack.spans], dtype=torch.int32)
    return {"packed_seq_lengths": lengths.to(device)}


class Decoder:
    """Unsloth's model as an engine calls it, with what its own `generate` does around its forward.

    For a single new token its attention layers go on in buffers of their own, which they fill from
    the keys and values that they are given when they have none (`models/llama.py`,
    LlamaAttention_fast_forward_inference). When another cache than the last one's goes on, those
    buffers are dropped, as its `generate` does for a cache that it is given.
    """

    def __init__(self, model: Any, dtype: torch.dtype):
        self.model, self.dtype = model.get_base_model(), dtype
        self.config = self.model.config
        self.latest: KeysAndValues | None = None  # whose tokens the buffers hold

    def __call__(self, past_key_values: Any, **inputs: Any) -> Any:
        is_begun = isinstance(past_key_values, KeysAndValues)
        if not is_begun or past_key_values is not self.latest:
            for module in self.model.modules():
                if hasattr(module, "paged_attention"):
                    del module.paged_attention_K, module.paged_attention_V, module.paged_attention
        with torch.autocast(DEVICE_TYPE_TORCH, self.dtype):
            output = self.model(
                past_key_values=past_key_values.layers if is_begun else None,
                return_dict=True,
                **inputs,
            )
        self.latest = output.past_key_values = KeysAndValues(output.past_key_values)
        return output


class KeysAndValues:
    """What Unsloth's forward gives of each layer: (keys, values), [rows, heads, tokens, size]."""

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]):
        self.layers = layers

    def reorder_cache(self, indices: torch.Tensor) -> None:
        self.layers = [(keys[indices], values[indices]) for keys, values in self.layers]


def engine_options(memory_share: float, max_num_seqs: int, rank: int) -> dict[str, Any]:
    """What `from_pretrained` is told, for an engine that takes `memory_share` of the whole card.

    Unsloth multiplies its share by what is free and divides by the card's size to get vLLM's
    gpu_memory_utilization.
    """
    free, whole = torch.cuda.mem_get_info()
    return {
        "fast_inference": True,
        "gpu_memory_utilization": min(1.0, memory_share * whole / free),
        "max_lora_rank": rank,
        "max_num_seqs": CHOOSE - 1 if max_num_seqs == CHOOSE else max_num_seqs,
    }


def unmapped_asleep_mb() -> float:
    """What the engine has given back and PyTorch's allocator still counts: all but weights."""
    from vllm.device_allocator.cumem import CuMemAllocator

    pool = CuMemAllocator.instance
    held = pool.pointer_to_data.values() if pool is not None else ()
    return sum(data.handle[1] for data in held if data.tag != "weights") / 2**20

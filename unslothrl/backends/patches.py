"""What Unsloth replaces in a model that it has loaded, and whether it has.

That is told by where the functions come from that run, so Unsloth itself is not imported here.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from unslothrl.errors import RunError

KINDS = ("llama", "mistral", "qwen2", "qwen3")  # model_type; their decoders take packed_seq_lengths
FUSED = "unsloth.kernels.fast_lora"  # its layers with a LoRA in one autograd function
PROJECTIONS = {  # the method that is replaced -> the layers that it computes
    "apply_qkv": ("q_proj", "k_proj", "v_proj"),
    "apply_o": ("o_proj",),
}
MLP = ("gate_proj", "up_proj", "down_proj")


def check(model: Any) -> None:
    """RunError where a PeftModel of one of `KINDS` does not run Unsloth's code."""
    if model.config.model_type not in KINDS:
        return
    found = sorted(set(missing(model)))
    if found:
        raise RunError(
            f"Unsloth's patches are not in force ({', '.join(found)}): transformers or peft was "
            "imported before Unsloth, or their versions do not fit (unslothrl doctor): set "
            "--backend peft"
        )


def missing(model: Any) -> Iterator[str]:
    """What is not Unsloth's: its attention, decoder layers and decoder; and its fused LoRA of every
    layer whose weights have no biases, which Unsloth leaves to PEFT."""
    decoder = model.get_base_model().model
    if not is_from("unsloth", type(decoder).forward):
        yield "decoder"
    fuses = can_fuse(model)
    for layer in decoder.layers:
        if not is_from("unsloth", type(layer).forward):
            yield "decoder layer"
        if not is_from("unsloth", type(layer.self_attn).forward):
            yield "attention"
        for method, names in PROJECTIONS.items():
            expected = fuses and has_plain_lora(layer.self_attn, names)
            if expected and not is_from(FUSED, getattr(layer.self_attn, method, None)):
                yield f"LoRA of {', '.join(names)}"
        if fuses and has_plain_lora(layer.mlp, MLP) and not is_from(FUSED, forward_of(layer.mlp)):
            yield f"LoRA of {', '.join(MLP)}"


def is_from(module: str, function: Callable | None) -> bool:
    found = getattr(function, "__module__", None) or ""
    return found == module or found.startswith(f"{module}.")


def forward_of(module: torch.nn.Module) -> Any:
    """Its forward without accelerate's hooks and without Unsloth's tiles around it."""
    for name in ("_unsloth_forward", "_old_forward"):
        if name in vars(module):
            return vars(module)[name]
    return module.forward


def can_fuse(model: Any) -> bool:
    """Whether its fused layers take this LoRA (`FastLlamaModel.patch_peft_model`)."""
    has_dropout = any(config.lora_dropout for config in model.peft_config.values())
    takes_dropout = os.environ.get("UNSLOTH_FUSED_LORA_DROPOUT", "1") != "0"
    projection = model.get_base_model().model.layers[0].self_attn.q_proj
    weight = getattr(projection, "base_layer", projection).weight
    computes_in = getattr(getattr(weight, "quant_state", weight), "dtype", None)
    return computes_in != torch.float32 and (takes_dropout or not has_dropout)


def has_plain_lora(module: torch.nn.Module, names: tuple[str, ...]) -> bool:
    """Whether all these layers have a LoRA and none a bias."""
    layers = [getattr(module, name) for name in names]
    return all(
        hasattr(layer, "lora_A") and getattr(layer, "base_layer", layer).bias is None
        for layer in layers
    )

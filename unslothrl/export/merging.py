"""An adapter merged into its base, in 16 bit.

The base is the 4-bit checkpoint that the adapter was trained on, dequantised: merged into the
original 16-bit weights an adapter meets another base than the one whose errors it has learnt to
live with. Layers that the checkpoint keeps in 16 bit (Unsloth's dynamic ones have some) are merged
as they are. W + s B A is summed in float32 and rounded once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bitsandbytes
import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM

from unslothrl.backends import peft

LORA, WRAPPED = ".lora_", ".base_layer"
QUANTISED = "quantization_config"


@dataclass(frozen=True)
class Likeness:
    """How far the merged model's logits are from those of the adapter over its 4-bit base."""

    prompts: int
    largest: float  # difference of two logits
    mean: float
    same_choice: float  # share of the positions at which both find the same token likeliest


def merged(
    base: Path,
    adapter: Path,
    dtype: torch.dtype,
    device: torch.device | None = None,
    stored: torch.dtype | None = None,
) -> tuple[Any, Any]:
    """-> (the model of `base` with `adapter` on it, which computes in `dtype` on `device`, see
    `peft.load_base`; the merged one, on the host, its weights in `stored`, by default `dtype`)."""
    stored = stored or dtype
    plain = peft.load_base(AutoModelForCausalLM, base, dtype, device)
    with_adapter = peft.add_lora(plain, 1, 1, 0.0, 0, start=adapter).eval()
    config = AutoConfig.from_pretrained(base, trust_remote_code=False)
    if hasattr(config, QUANTISED):
        del config.quantization_config
    config.dtype = stored
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=stored)
    model.load_state_dict(dict(weights_of(with_adapter.get_base_model(), stored)), assign=True)
    model.tie_weights()
    model.generation_config = plain.generation_config
    return with_adapter, model.eval()


@torch.no_grad()
def weights_of(model: Any, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """The merged weights of a model with a LoRA on it, by the names that they have without."""
    linears = {
        name.removesuffix(WRAPPED): module
        for name, module in model.named_modules()
        if isinstance(module, bitsandbytes.nn.Linear4bit) or name.endswith(WRAPPED)
    }
    for name, module in linears.items():
        weight = dequantised(module)
        owner = model.get_submodule(name)
        if owner is not module:
            weight = weight + owner.get_delta_weight("default").float()
        yield f"{name}.weight", weight.to(dtype).cpu()
    for key, tensor in model.state_dict().items():
        name, _, _ = key.replace(WRAPPED, "").partition(".weight")
        is_merged = name in linears and ".weight" in key
        if LORA not in key and not is_merged:
            yield key.replace(WRAPPED, ""), tensor.to(dtype).cpu()


def dequantised(linear: torch.nn.Linear) -> torch.Tensor:
    """[out, in], float32: the values that the layer computes with."""
    if not isinstance(linear, bitsandbytes.nn.Linear4bit):
        return linear.weight.float()
    weight: Any = linear.weight  # a Params4bit
    if weight.device.type == "cpu":  # as in its forward pass there
        weight.quant_state.dtype = linear.compute_dtype
    values = bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
    return values.float().reshape(linear.out_features, linear.in_features)


class Float32Linear(torch.nn.Linear):
    """Computes in float32, whatever its weights are stored in."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.float()
        return torch.nn.functional.linear(input.float(), self.weight.float(), bias)


def compute_in_float32(model: Any) -> None:
    """Makes a model of 16-bit weights compute as an engine does that only stores them so."""
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = Float32Linear
    model.get_input_embeddings().register_forward_hook(lambda _, __, output: output.float())


@torch.no_grad()
def likeness(one: Any, other: Any, prompts: Sequence[Sequence[int]]) -> Likeness:
    """Compares the logits of two models at every position of some prompts' ids."""
    largest, total, same, count, positions = 0.0, 0.0, 0, 0, 0
    for ids in prompts:
        first, second = (
            model(torch.tensor([list(ids)], device=model.device)).logits[0].float().cpu()
            for model in (one, other)
        )
        gap = (first - second).abs()
        largest, total = max(largest, float(gap.max())), total + float(gap.sum())
        same += int((first.argmax(-1) == second.argmax(-1)).sum())
        count, positions = count + gap.numel(), positions + len(ids)
    return Likeness(len(prompts), largest, total / count, same / positions)

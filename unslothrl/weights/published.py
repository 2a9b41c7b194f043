"""A published adapter, and the packed 4-bit weights of a base, as tensors to compare with."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load

from unslothrl.weights.adapter import Adapter, AdapterShape
from unslothrl.weights.base_parts import weight_files

CPU = torch.device("cpu")
STATE = ".quant_state."  # of the names of what a 4-bit weight is stored with


class Published:
    """The LoRA of a version."""

    def __init__(self, adapter: Adapter):
        self.version, self.settings = adapter.version, json.loads(adapter.config)
        self.scaling = scaling_of(self.settings)
        self.tensors = load(bytes(adapter.weights))  # by PEFT's names

    def shape(self) -> AdapterShape:
        tensors = tuple((name, tuple(each.shape)) for name, each in sorted(self.tensors.items()))
        return AdapterShape(tensors, json.dumps(self.settings))


def scaling_of(settings: dict[str, Any]) -> float:
    """What B A x is multiplied by; a plain LoRA has one rank and alpha for all its modules."""
    rank = settings["r"]
    return settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def difference(name: str, held: torch.Tensor, published: torch.Tensor) -> str | None:
    """How a tensor differs from the published one of its dtype, in words; None where not."""
    if held.shape != published.shape:
        return f"{name} has the shape {list(held.shape)}, published as {list(published.shape)}"
    if torch.equal(held, published.to(held.device)):
        return None
    ours, theirs = held.detach().double().cpu(), published.double().cpu()
    if not ours.any():
        return f"{name} is zero, and was not published so"
    differ = ours != theirs
    return (
        f"{name} differs from the published one in {int(differ.sum())} of {differ.numel()} values, "
        f"by up to {float((ours - theirs).abs().max()):.2g}"
    )


class PackedWeights:
    """By their names in the checkpoint: "model.layers.0.self_attn.q_proj.weight"."""

    def __init__(self, base: Path):
        self.files: dict[str, Path] = {}
        for file in weight_files(base):
            with safe_open(file, "pt") as tensors:
                names = set(tensors.keys())
            quantised = {name.split(STATE)[0] for name in names if STATE in name}
            self.files |= dict.fromkeys(quantised, file)

    def tensor(self, name: str) -> torch.Tensor:
        """[bytes], uint8, each with two values of a row-major matrix. KeyError."""
        with safe_open(self.files[name], "pt") as tensors:
            return tensors.get_tensor(name).flatten()

    def scales(self, name: str) -> torch.Tensor:
        """[values / 64], float32, as vLLM's bitsandbytes loader expands them."""
        from bitsandbytes.functional import QuantState, dequantize_blockwise

        with safe_open(self.files[name], "pt") as tensors:
            keys = [key for key in tensors.keys() if key.startswith(f"{name}.")]  # noqa: SIM118
            state = QuantState.from_dict({key: tensors.get_tensor(key) for key in keys}, CPU)
        if not state.nested:
            return state.absmax.float().flatten()
        expanded = dequantize_blockwise(state.absmax, state.state2) + state.offset
        return expanded.float().flatten()

"""The packed 4-bit weights of a checkpoint, read from its files."""

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from unslothrl.records import LORA_TARGETS
from unslothrl.weights.base_parts import weight_files

CPU = torch.device("cpu")
STATE = ".quant_state."  # of the names of what a 4-bit weight is stored with
OF_LINEAR = re.compile(rf"\.(\d+)\..*\.({'|'.join(LORA_TARGETS)})\.weight$")


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
        """[bytes], uint8, each with two values of a row-major matrix. KeyError where there is none
        of that name."""
        with safe_open(self.files[name], "pt") as tensors:
            return tensors.get_tensor(name).flatten()

    def scales(self, name: str) -> torch.Tensor:
        """[values / 64], float32: what each block of a row-major matrix is multiplied by, expanded
        from 8 bits as vLLM does (`_dequantize_dq` of its bitsandbytes loader)."""
        from bitsandbytes.functional import QuantState, dequantize_blockwise

        with safe_open(self.files[name], "pt") as tensors:
            keys = [key for key in tensors.keys() if key.startswith(f"{name}.")]  # noqa: SIM118
            state = QuantState.from_dict({key: tensors.get_tensor(key) for key in keys}, CPU)
        if not state.nested:
            return state.absmax.float().flatten()
        expanded = dequantize_blockwise(state.absmax, state.state2) + state.offset
        return expanded.float().flatten()

    def in_order(self) -> Iterator[bytes]:
        """Of the linear layers, in the order of `base_model.fingerprint`."""
        found = {}
        for name in self.files:
            if match := OF_LINEAR.search(name):
                found[int(match[1]), LORA_TARGETS.index(match[2])] = name
        for key in sorted(found):
            yield self.tensor(found[key]).numpy().tobytes()

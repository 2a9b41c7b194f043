"""Adapter folders as PEFT writes them, made by hand, whole or in any wrong form."""

import json
import struct
from pathlib import Path

from unslothrl.records import LORA_TARGETS
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE

SETTINGS = {
    "base_model_name_or_path": "embedded",
    "bias": "none",
    "inference_mode": True,
    "init_lora_weights": True,
    "loftq_config": {},
    "lora_alpha": 8,
    "lora_dropout": 0.0,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "qalora_group_size": 16,
    "r": 4,
    "rank_pattern": {},
    "target_modules": list(LORA_TARGETS),
    "task_type": "CAUSAL_LM",
    "use_dora": False,
    "use_rslora": False,
}
LAYERS, HIDDEN, INNER, KEYS = 4, 128, 384, 64  # of the embedded base
SIZES = {  # target -> (in, out)
    "q_proj": (HIDDEN, HIDDEN),
    "k_proj": (HIDDEN, KEYS),
    "v_proj": (HIDDEN, KEYS),
    "o_proj": (HIDDEN, HIDDEN),
    "gate_proj": (HIDDEN, INNER),
    "up_proj": (HIDDEN, INNER),
    "down_proj": (INNER, HIDDEN),
}
ONE = b"\x80\x3c"  # 1/64 in bfloat16
NOT_A_NUMBER = b"\xc0\x7f"


def tensor_name(layer: int, target: str, half: str) -> str:
    part = "self_attn" if target[0] in "qkvo" else "mlp"
    return f"base_model.model.model.layers.{layer}.{part}.{target}.lora_{half}.weight"


def tensors(rank: int = 4) -> dict[str, tuple[str, list[int], bytes]]:
    """name -> (dtype, shape, data) of every tensor of a whole adapter of the embedded base."""
    found = {}
    for layer in range(LAYERS):
        for target, (inner, outer) in SIZES.items():
            for half, shape in (("A", [rank, inner]), ("B", [outer, rank])):
                data = ONE * (shape[0] * shape[1])
                found[tensor_name(layer, target, half)] = ("BF16", shape, data)
    return found


def packed(parts: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """A safetensors file."""
    header, at = {}, 0
    for name, (dtype, shape, data) in parts.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in parts.values())


def write(folder: Path, settings: object = None, weights: bytes | None = None) -> Path:
    """An adapter of the embedded base; `settings` and `weights` replace what a whole one has."""
    folder.mkdir(parents=True, exist_ok=True)
    text = settings if isinstance(settings, str) else json.dumps(settings or SETTINGS)
    (folder / CONFIG_FILE).write_text(text)
    (folder / WEIGHTS_FILE).write_bytes(packed(tensors()) if weights is None else weights)
    return folder

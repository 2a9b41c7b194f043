"""The decoder of a model: what is quantised, carries a LoRA, is trained and served.

    python -m unslothrl.weights.decoder CONFIG    # what config.json holds: prints `count`'s

A checkpoint that takes images or sound as well (Gemma 3 and 4, Ministral 3, Qwen3.5) is used as the
text model in it: transformers' own class of its text configuration.

Every linear layer within a decoder's layers gets a LoRA, by whatever names a family gives them.
What is no linear layer, such as the experts of a mixture, gets none and stays in 16 bits, and
nothing else would say so.
"""

import contextlib
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

from unslothrl.errors import UserError
from unslothrl.weights.base_model import in_order
from unslothrl.weights.shapes import HALF

LEAST = 0.99  # share of the decoder's linear weights
TABLES = (torch.nn.Embedding, torch.nn.Conv1d)  # matrices that no linear layer multiplies by
MOST_NAMED = 4
BLOCK = 16  # tokens, of vLLM's cache
OF_TEXT = re.compile(r"^(?:model\.)?language_model\.(?:model\.)?")
NUMBERED = re.compile(r"\.\d+\.")
LAYER = re.compile(r"\blayers\.(\d+)")
OF_A_SHAPE = ("model_type", "num_hidden_layers", "hidden_size", "intermediate_size",
              "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
              "tie_word_embeddings", "attention_bias", "max_position_embeddings")  # fmt: skip
MISSING = {  # by model_type: what the engines lack
    "lfm2": "vLLM's LFM2 reads conv_dim, which transformers 5 has left out of its configuration",
}
STATES = ("qwen3_5_text",)  # kinds whose layers of recurrent states have been tried


def text_of(config: dict[str, Any]) -> Any:
    """transformers' configuration of the text model of which config.json holds `config`. SystemExit
    with the reason for a kind of which it has none: a process of its own asks for it."""
    values, kind = json.loads(json.dumps(config), object_hook=as_float), config["model_type"]
    values.pop("quantization_config", None)
    text = CONFIG_MAPPING[kind](**values).get_text_config() if kind in CONFIG_MAPPING else None
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise SystemExit(f"transformers has no text model of the kind {kind}")
    return text


def as_float(value: dict[str, Any]) -> Any:
    """transformers writes infinity as an object."""
    return float(value["__float__"]) if "__float__" in value else value


def empty(config: Any) -> Any:
    """A causal model of a text configuration, without weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def name_in_text(name: str) -> str:
    """A tensor's name in the text model, of a checkpoint that has more parts."""
    return OF_TEXT.sub("model.", name).replace("model.lm_head.", "lm_head.")


def linears(model: Any) -> dict[str, torch.nn.Linear]:
    """The linear layers within a causal model's decoder layers, by their paths in it, such as
    "layers.0.mlp.up_proj"; of 4-bit ones `weight` has another shape."""
    return {
        path: module
        for path, module in model.get_decoder().named_modules()
        if isinstance(module, torch.nn.Linear) and NUMBERED.search(path)
    }


def targets(model: Any) -> list[str]:
    """The names of all these layers, as PEFT and the engines take them."""
    return in_order({path.rpartition(".")[2] for path in linears(model)})


def obstacle(model: Any) -> str | None:
    """Why a causal model of transformers cannot be trained; None where it can."""
    if missing := MISSING.get(model.config.model_type):
        return f"it cannot be served yet: {missing}"
    if model._is_stateful and model.config.model_type not in STATES:
        return f"its recurrent layers are not known: of such models {', '.join(STATES)} is tried"
    if getattr(model.config, "attention_k_eq_v", False):
        return "some of its keys are values too, of which vLLM gives a LoRA to the keys alone"
    covered = sum(each.in_features * each.out_features for each in linears(model).values())
    others: dict[str, int] = {}
    for path, module in model.get_decoder().named_modules():
        if isinstance(module, (torch.nn.Linear, *TABLES)):
            continue
        for of_module, weight in module.named_parameters(recurse=False):
            if weight.dim() > 1:
                key = f"{path.rpartition('.')[2]}.{of_module}"
                others[key] = others.get(key, 0) + weight.numel()
    share = covered / max(1, covered + sum(others.values()))
    if share >= LEAST:
        return None
    largest = sorted(others, key=lambda each: -others[each])[:MOST_NAMED]
    return (
        f"a LoRA would cover {100 * share:.1f}% of its linear weights, and at least "
        f"{100 * LEAST:g}% are needed (not covered: {', '.join(largest)}, which vLLM does not "
        "serve in 4 bits with a LoRA, vllm#32590): choose a dense model"
    )


def check(model: Any, base: Path) -> None:
    """UserError where the model that was loaded from the folder `base` cannot be trained."""
    if reason := obstacle(model):
        raise UserError(f"model {base}: {reason}")


def count(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of `shapes.OwnLayers`; of linear layers, as (path, in, out, those of the decoder's
    layers that have it). SystemExit with the reason where it cannot be trained."""
    text = text_of(config)
    model = empty(text)
    if reason := obstacle(model):
        raise SystemExit(reason)
    found: dict[tuple[str, int, int], list[str]] = {}
    others = sum(p.numel() for p in model.parameters())
    for path, linear in linears(model).items():
        within, size = LAYER.sub("layers.{}", path), (linear.in_features, linear.out_features)
        found.setdefault((within, *size), []).append("".join(LAYER.findall(path)))
        others -= math.prod(size)
    whole = json.loads(text.to_json_string(use_diff=False))
    return {
        "config": {name: whole[name] for name in OF_A_SHAPE if name in whole},
        "linears": [(*linear, layers) for linear, layers in found.items()],
        "others": others,
        **kept_bytes(whole, model, state_bytes(text)),
    }


def kept_bytes(config: dict[str, Any], model: Any, state: int) -> dict[str, int]:
    """What layers keep of a sequence (a recurrent one `state`), as vLLM's cache holds it: it deals
    layers with a window into groups of as many as see everything, the last of which may be padded
    (get_kv_cache_groups in v1/core/kv_cache_utils.py), and gives all layers pages of one size, for
    which blocks grow (_align_hybrid_block_size in platforms/interface.py); a state takes one."""
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    keeping = kinds[: len(kinds) - (config.get("num_kv_shared_layers") or 0)]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    found, full, windowed = linears(model), list[int](), list[int]()
    for at, kind in enumerate(keeping):
        if kind != "linear_attention":
            keys = found.get(f"layers.{at}.self_attn.k_proj")
            width = keys.out_features if keys else config["num_key_value_heads"] * head
            (windowed if kind == "sliding_attention" else full).append(2 * HALF * width)
    if full and windowed:
        padded = -(-len(windowed) // len(full)) * len(full)
        windowed += windowed[:1] * (padded - len(windowed))
    of_layer = max(full, default=1)
    page, least = max(state, BLOCK * of_layer), min(windowed or [of_layer])
    block = -(-page // (BLOCK * least)) * BLOCK
    return {
        "keys": sum(full),
        "window_keys": sum(windowed),
        "window": config.get("sliding_window") or 0,
        "state": kinds.count("linear_attention") * block * of_layer,
        "block": block,
    }


def state_bytes(text: Any) -> int:
    """Of a layer of Gated DeltaNet, of a sequence: a matrix of each head in float32, and what its
    convolution has seen last, in 16 bits."""
    if not hasattr(text, "linear_num_value_heads"):
        return 0
    keys = text.linear_num_key_heads * text.linear_key_head_dim
    values = text.linear_num_value_heads * text.linear_value_head_dim
    seen = (2 * keys + values) * (text.linear_conv_kernel_dim - 1)
    return 4 * values * text.linear_key_head_dim + 2 * seen


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        counted = count(json.loads(sys.argv[1]))
    print(json.dumps(counted))

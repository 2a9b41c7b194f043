"""python -m unslothrl.weights.quantise SOURCE TARGET: an NF4 copy of the text model of a 16-bit
checkpoint; of one in 4 bits, its text model as it is.

Tensor by tensor: what is there at once is a file of the source in 4 bits. A process of its own:
CUDA's context and what the allocators have cached end with it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from bitsandbytes.functional import quantize_4bit
from safetensors import safe_open
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.quantizers.base import get_keys_to_not_convert

from unslothrl.system.memory import limit_card_memory
from unslothrl.weights import base_parts, decoder

NF4 = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)


def main(source: str, target: str) -> None:
    """Double quantisation. Exits with the reason before it reads a model that cannot be trained."""
    stored = base_parts.read(Path(source), "config.json")
    settings, config = stored.get("quantization_config"), decoder.text_of(stored)
    model = decoder.empty(config)
    if reason := decoder.obstacle(model):
        sys.exit(reason)
    limit_card_memory()
    files = base_parts.weight_files(Path(source))
    names = {name for file in files for name in safe_open(file, "pt").keys()}  # noqa: SIM118
    there = set(map(decoder.name_in_text, names))
    tied = set(model.all_tied_weights_keys)
    if missing := model.state_dict().keys() - there - tied:
        if settings or "text_config" in stored:
            sys.exit(f"its files lack {min(missing)}")
        return whole(source, target)  # transformers renames them as it loads
    kept = get_keys_to_not_convert(model)
    linears = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name not in kept
    }
    wanted, index = model.state_dict().keys() - tied, dict[str, str]()
    for number, file in enumerate(files):
        is_one = len(files) == 1
        name = base_parts.WHOLE if is_one else f"model-{number + 1:05d}.safetensors"
        found = tensors_of(file, wanted, None if settings else linears)
        safetensors.torch.save_file(found, Path(target) / name, {"format": "pt"})
        index |= dict.fromkeys(found, name)
    if len(files) > 1:
        listed = json.dumps({"metadata": {}, "weight_map": index}, indent=1, sort_keys=True)
        (Path(target) / base_parts.INDEX).write_text(listed)
    if settings and (kept := settings.get("llm_int8_skip_modules")):
        settings["llm_int8_skip_modules"] = list(map(decoder.name_in_text, kept))
    config.quantization_config, config.dtype = settings or NF4.to_dict(), torch.bfloat16
    config.update({"architectures": [type(model).__name__]})
    config.save_pretrained(target)


def tensors_of(file: Path, wanted: Any, linears: set[str] | None) -> dict[str, torch.Tensor]:
    """The tensors `wanted` of a file: `linears` packed and with their scales, others in bfloat16.
    None: all as they are, with what 4-bit ones are stored with."""
    device, found = "cuda" if torch.cuda.is_available() else "cpu", dict[str, torch.Tensor]()
    with safe_open(file, "pt") as tensors:
        for own in tensors.keys():  # noqa: SIM118
            name = decoder.name_in_text(own)
            if name not in wanted and f"{name.partition('.weight.')[0]}.weight" not in wanted:
                continue
            weight = tensors.get_tensor(own)
            if linears is None:
                found[name] = weight
            elif name in linears:
                half = weight.to(torch.bfloat16).to(device)
                packed, state = quantize_4bit(half, quant_type="nf4", compress_statistics=True)
                more = {f"{name}.{key}": each for key, each in state.as_dict(packed=True).items()}
                found |= {each: tensor.cpu() for each, tensor in {name: packed, **more}.items()}
            else:
                found[name] = weight.to(torch.bfloat16)
    return found


def whole(source: str, target: str) -> None:
    """By transformers, which holds all of it."""
    AutoModelForCausalLM.from_pretrained(
        source,
        quantization_config=NF4,
        device_map="cuda:0" if torch.cuda.is_available() else "cpu",
        dtype=torch.bfloat16,
        trust_remote_code=False,  # None would ask on stdin
    ).save_pretrained(target)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Makes a base of a real model's shape with random weights and quantises it with bitsandbytes.

    python bench/on_card/model.py 7B FOLDER [--tiny] [--plain]

`--tiny` reduces the shape to two layers of width 64.
`--plain` leaves it in 16 bits.
"""

import argparse
import json
import shutil
from pathlib import Path

SHAPES = {"7B": "qwen2.5-7b", "8B": "llama-3.1-8b", "3B": "qwen2.5-3b", "1.5B": "qwen2.5-1.5b"}
TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 512,
}
EOS, PAD = 2, 0


def config_of(name: str, tiny: bool):
    """The transformers config of one of `SHAPES`."""
    from transformers import AutoConfig

    from unslothrl.weights.shapes import KNOWN

    shape = KNOWN[SHAPES[name]]
    sizes = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "vocab_size": shape.vocabulary,
    }
    return AutoConfig.for_model(
        "qwen2" if shape.biases else "llama",
        **(TINY if tiny else sizes),
        tie_word_embeddings=shape.tied,
        max_position_embeddings=shape.context,
        eos_token_id=EOS,
        pad_token_id=PAD,
        dtype="bfloat16",
    )


def write(name: str, folder: Path, tiny: bool, four_bit: bool) -> None:
    """Writes the model to a temporary folder, which is renamed when it is complete."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = config_of(name, tiny)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        plain = AutoModelForCausalLM.from_config(config)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (quantised(plain) if four_bit else plain).save_pretrained(partial)
    add_tokenizer(partial)
    partial.rename(folder)
    print(json.dumps({"parameters": sum(p.numel() for p in plain.parameters())}))


def add_tokenizer(folder: Path) -> Path:
    """The embedded base's."""
    from unslothrl import embedded

    for path in embedded.BASE.iterdir():
        if path.name.startswith("tokenizer") or path.suffix == ".jinja":
            shutil.copyfile(path, folder / path.name)
    return folder


def quantised(plain):
    """The same weights in NF4, double quantisation, bfloat16 compute."""
    import torch
    from transformers import BitsAndBytesConfig

    weights = plain.state_dict()
    if plain.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return type(plain).from_pretrained(
        None,
        config=plain.config,
        state_dict=weights,
        dtype=torch.bfloat16,
        device_map={"": 0} if plain.device.type == "cuda" else "cpu",
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        ),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    write(given.name, given.folder, given.tiny, not given.plain)

"""python -m unslothrl.weights.quantise SOURCE TARGET: writes an NF4 copy of a 16-bit checkpoint.

A process of its own: CUDA's context and what the allocators have cached end with it.
"""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

from unslothrl.system.memory import limit_card_memory
from unslothrl.weights import coverage


def main(source: str, target: str) -> None:
    """Double quantisation. Exits with the reason before it reads a model that cannot be trained."""
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    with torch.device("meta"):
        unloaded = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    if reason := coverage.obstacle(unloaded):
        sys.exit(reason)
    limit_card_memory()
    AutoModelForCausalLM.from_pretrained(
        source,
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        ),
        device_map="cuda:0" if torch.cuda.is_available() else "cpu",
        dtype=torch.bfloat16,
        trust_remote_code=False,  # None would ask on stdin
    ).save_pretrained(target)


if __name__ == "__main__":
    main(*sys.argv[1:])

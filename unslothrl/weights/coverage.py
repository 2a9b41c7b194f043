"""Whether a LoRA on the usual seven linear layers trains a model, and NF4 quantises it.

Fused layers, those of linear attention and of convolutions have other names, and the experts of a
mixture are tensors outside of any layer: most of such a model would stay as it is, some of it in 16
bits, and nothing else would say so.
"""

from pathlib import Path
from typing import Any

import torch

from unslothrl.errors import UserError
from unslothrl.records import LORA_TARGETS

LEAST = 0.99  # share of the decoder's linear weights
TABLES = (torch.nn.Embedding, torch.nn.Conv1d)  # matrices that no linear layer multiplies by
MOST_NAMED = 4


def obstacle(model: Any) -> str | None:
    """Why a causal model of transformers cannot be trained; None where it can."""
    covered = 0
    others: dict[str, int] = {}
    for path, module in model.get_decoder().named_modules():
        name = path.rpartition(".")[2]
        if isinstance(module, torch.nn.Linear):
            size = module.in_features * module.out_features  # 4-bit weights have another shape
            if name in LORA_TARGETS:
                covered += size
            else:
                others[name] = others.get(name, 0) + size
        elif not isinstance(module, TABLES):
            for of_module, weight in module.named_parameters(recurse=False):
                if weight.dim() > 1:
                    key = f"{name}.{of_module}"
                    others[key] = others.get(key, 0) + weight.numel()
    share = covered / max(1, covered + sum(others.values()))
    if share >= LEAST:
        return None
    largest = sorted(others, key=lambda each: -others[each])[:MOST_NAMED]
    return (
        f"a LoRA would cover {100 * share:.1f}% of its linear weights, and at least "
        f"{100 * LEAST:g}% are needed (not covered: {', '.join(largest)}): choose a dense model "
        f"with {', '.join(LORA_TARGETS)}, such as Llama, Mistral, Qwen2 or Qwen3"
    )


def check(model: Any, base: Path) -> None:
    """UserError where the model that was loaded from the folder `base` cannot be trained."""
    if reason := obstacle(model):
        raise UserError(f"model {base}: {reason}")

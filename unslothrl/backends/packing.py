"""Sequences one after the other in one row, so that no padding reaches the model.

Positions restart with every sequence, and attention is computed sequence by sequence: none sees
another, and no mask of [tokens, tokens] is made. The lengths travel where a mask would, as an int32
tensor [1, 1, 1, sequences]: transformers hands on whatever has four dimensions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from unslothrl.types import Sample

ATTENTION = "unslothrl_packed"  # transformers' name of it; what is not packed it does as "sdpa"


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, tokens, size]
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each sequence, [1, tokens, heads, size]."""
    if attention_mask is None or attention_mask.dtype != torch.int32:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    options["is_causal"] = True
    lengths = attention_mask.flatten().tolist()
    each = zip(*(whole.split(lengths, dim=2) for whole in (query, key, value)), strict=True)
    found = [sdpa_attention_forward(module, q, k, v, None, **options)[0] for q, k, v in each]
    return torch.cat(found, dim=1), None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def can_pack(config: Any) -> bool:
    """Whether a model attends to all that came before, by plain attention: then packs are exact."""
    windowed = getattr(config, "sliding_window", None) and getattr(
        config, "use_sliding_window", True
    )
    capped = getattr(config, "attn_logit_softcapping", None)
    return not windowed and not capped and config._attn_implementation in ("sdpa", ATTENTION)


def packed(
    samples: Sequence[Sample], device: torch.device
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """-> (what the decoder is called with, the row that says each completion token, the tokens).

    Rows are those of the decoder's output, [tokens of all sequences]; both others are [completion
    tokens].
    """
    ids: list[int] = []
    positions: list[int] = []
    lengths: list[int] = []
    before: list[int] = []
    for sample in samples:
        row = sample.prompt_ids + sample.completion_ids
        first = len(ids) + len(sample.prompt_ids)
        before += range(first - 1, len(ids) + len(row) - 1)
        ids += row
        positions += range(len(row))
        lengths.append(len(row))
    inputs = {
        "input_ids": torch.tensor([ids], device=device),
        "position_ids": torch.tensor([positions], device=device),
        "attention_mask": torch.tensor(lengths, dtype=torch.int32, device=device)[None, None, None],
    }
    rows = torch.tensor(before, dtype=torch.long, device=device)
    return inputs, rows, inputs["input_ids"][0, rows + 1]

"""Attention for packs and for single tokens, under one name that transformers knows.

In a pack each sequence attends by itself, so that no mask of [tokens, tokens] is made. What lies
where travels where a mask would, as an int32 tensor [1, 1, sequences, 3]: transformers hands on
whatever has four dimensions. All else is PyTorch's own attention.
"""

import itertools
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION = "unslothrl_packed"  # transformers' name of it; what is not packed it does as "sdpa"


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,  # [rows, heads, tokens, size]
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """[1, tokens, heads, size]; in a pack causal attention inside each sequence."""
    if attention_mask is not None and attention_mask.dtype == torch.int32:
        return attend_in_pack(module, query, key, value, attention_mask, **options)
    if query.shape[2] == 1 and key.shape[1] < query.shape[1]:
        return attend_once(query, key, value, attention_mask, options.get("scaling")), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def attend_once(
    query: torch.Tensor,  # [rows, heads, 1, size]
    key: torch.Tensor,  # [rows, fewer heads, tokens, size]
    value: torch.Tensor,
    mask: torch.Tensor | None,  # [rows, 1, 1, tokens]
    scale: float | None,
) -> torch.Tensor:
    """Of one new token: the heads that share a key are its queries, so no key is repeated for them.
    -> [rows, 1, heads, size]."""
    grouped = query.view(len(query), key.shape[1], -1, query.shape[3])
    output = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=mask, scale=scale
    )
    return output.reshape(len(query), 1, query.shape[1], query.shape[3])


def attend_in_pack(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    spans_of: torch.Tensor,  # [1, 1, sequences, 3]
    **options: Any,
) -> tuple[torch.Tensor, None]:
    options["is_causal"] = True
    # On a CPU bfloat16 is as fast forward, and three times as slow backward on short sequences.
    exact = torch.float32 if query.device.type == "cpu" else query.dtype
    spans = list(itertools.starmap(Span, spans_of[0, 0].tolist()))
    pieces = [  # split, not sliced: the gradient of a slice is as large as the whole
        iter(whole.to(exact).split([size for span in spans for size in span.pieces], 2))
        for whole in (query, key, value)
    ]
    prompts: list[torch.Tensor] = []
    outputs = []
    for span in spans:
        if span.is_first:
            prompts = [next(piece) for piece in pieces]
        whole = [torch.cat(both, 2) for both in zip(prompts, map(next, pieces), strict=True)]
        output, _ = sdpa_attention_forward(module, whole[0], whole[1], whole[2], None, **options)
        outputs.append(output if span.is_first else output[:, span.prompt_tokens :])
    return torch.cat(outputs, dim=1).to(query.dtype), None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class Span(NamedTuple):
    """A completion in a pack and the prompt it goes on from."""

    prompt_tokens: int
    completion_tokens: int
    is_first: bool  # the prompt stands right before it; that of the others further back

    @property
    def pieces(self) -> tuple[int, ...]:
        """Lengths of what it adds to the pack."""
        both = (self.prompt_tokens, self.completion_tokens)
        return both if self.is_first else both[1:]

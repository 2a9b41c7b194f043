"""Sequences one after the other in one row, so that no padding reaches the model.

    prompt A | completion | completion | completion | prompt B | completion | ...

A prompt stands there once for all its completions: their positions go on from it, and each attends
to it and to itself alone. So a group's prompt passes through the linear layers once; attention,
computed sequence by sequence, repeats it. No mask of [tokens, tokens] is made. What lies where
travels where a mask would, as an int32 tensor [1, 1, sequences, 3]: transformers hands on
whatever has four dimensions.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from unslothrl.types import Sample

ATTENTION = "unslothrl_packed"  # transformers' name of it; what is not packed it does as "sdpa"

FILL = 256  # on a CPU packs are filled up to so many tokens: oneDNN keeps 10 MB for each new shape


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
    # On a CPU bfloat16 is as fast forward, and three times as slow backward on short sequences.
    exact = torch.float32 if query.device.type == "cpu" else query.dtype
    spans = list(itertools.starmap(Span, attention_mask[0, 0].tolist()))
    pieces = [  # split, not sliced: the gradient of a slice is as large as the whole
        iter(whole.to(exact).split([size for span in spans for size in span.pieces], 2))
        for whole in (query, key, value)
    ]
    prompts: list[torch.Tensor] = []
    found = []
    for span in spans:
        if span.is_first:
            prompts = [next(piece) for piece in pieces]
        whole = [torch.cat(both, 2) for both in zip(prompts, map(next, pieces), strict=True)]
        drawn, _ = sdpa_attention_forward(module, whole[0], whole[1], whole[2], None, **options)
        found.append(drawn if span.is_first else drawn[:, span.prompt_tokens :])
    return torch.cat(found, dim=1).to(query.dtype), None


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

    Rows are those of the decoder's output, [tokens of the pack]; both others are [completion
    tokens], in the order of `samples`.
    """
    ids: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    before: list[list[int]] = [[] for _ in samples]
    for prompt, indices in by_prompt(samples).items():
        first = len(ids)
        ids += prompt
        positions += range(len(prompt))
        for index in indices:
            begin, completion = len(ids), samples[index].completion_ids
            spans.append(Span(len(prompt), len(completion), index == indices[0]))
            before[index] = [first + len(prompt) - 1, *range(begin, begin + len(completion) - 1)]
            ids += completion
            positions += range(len(prompt), len(prompt) + len(completion))
    if device.type == "cpu" and (filling := -len(ids) % FILL):
        spans.append(Span(1, filling - 1, True))
        ids += [0] * filling
        positions += range(filling)
    inputs = {
        "input_ids": torch.tensor([ids], device=device),
        "position_ids": torch.tensor([positions], device=device),
        "attention_mask": torch.tensor(spans, dtype=torch.int32)[None, None],
    }
    rows = [
        row for index, one in enumerate(samples) for row in before[index][: len(one.completion_ids)]
    ]
    targets = [token for one in samples for token in one.completion_ids]
    return (
        inputs,
        torch.tensor(rows, dtype=torch.long, device=device),
        torch.tensor(targets, dtype=torch.long, device=device),
    )


def by_prompt(samples: Sequence[Sample]) -> dict[tuple[int, ...], list[int]]:
    """The indices of the samples of each prompt, in the order in which the prompts first appear."""
    found: dict[tuple[int, ...], list[int]] = {}
    for index, sample in enumerate(samples):
        found.setdefault(sample.prompt_ids, []).append(index)
    return found


def packs(samples: Sequence[Sample], most: int) -> list[list[int]]:
    """Indices, those of a prompt together, in packs of at most `most` tokens (a longer sequence
    alone), of about the same number of tokens each."""
    order = [index for indices in by_prompt(samples).values() for index in indices]
    prompts = sum(map(len, by_prompt(samples)))
    total = prompts + sum(len(sample.completion_ids) for sample in samples)
    share = min(most, -(-total // max(1, -(-total // most))))  # an equal part of the fewest packs
    found: list[list[int]] = []
    used, last = most + 1, None  # tokens of the newest pack, and its last prompt
    for index in order:
        prompt, completion = samples[index].prompt_ids, len(samples[index].completion_ids)
        needed = completion + (0 if prompt == last else len(prompt))
        if used + needed > most or used >= share:
            found.append([])
            used, needed = 0, len(prompt) + completion
        found[-1].append(index)
        used, last = used + needed, prompt
    return found

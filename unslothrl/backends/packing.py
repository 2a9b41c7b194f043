"""Sequences one after the other in one row, so that no padding reaches the model.

    prompt A | completion | completion | completion | prompt B | completion | ...

A prompt stands there once for all its completions: their positions go on from it, and each attends
to it and to itself alone. So a group's prompt passes through the linear layers once; attention,
computed sequence by sequence, repeats it. No mask of [tokens, tokens] is made. What lies where
travels where a mask would, as an int32 tensor [1, 1, sequences, 3]: transformers hands on
whatever has four dimensions.
"""

from collections.abc import Sequence
from typing import Any

import torch

from unslothrl.backends.attention import ATTENTION, Span
from unslothrl.types import Sample

FILL = 256  # on a CPU packs are filled up to so many tokens: oneDNN keeps 10 MB for each new shape


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

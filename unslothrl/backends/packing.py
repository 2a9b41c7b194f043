"""Sequences one after the other in one row, so that no padding reaches the model.

    prompt A | completion | completion | completion | prompt B | completion | ...

Where the backend's attention can, a prompt stands there once for all its completions: their
positions go on from it, and each attends to it and to itself alone. So a group's prompt passes
through the linear layers once; attention, computed sequence by sequence, repeats it.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unslothrl.backends.attention import ATTENTION, Span
from unslothrl.records import Sample

FILL = 256  # on a CPU packs are filled up to so many tokens: oneDNN keeps 10 MB for each new shape


@dataclass(frozen=True)
class Pack:
    """What one forward pass gets, and where in its output the completions lie."""

    ids: torch.Tensor  # [1, tokens]
    positions: torch.Tensor  # [1, tokens], restarting with every sequence
    spans: tuple[Span, ...]  # the sequences, in their order in the row
    rows: torch.Tensor  # [sampled tokens] -> the row of the output that predicts it
    targets: torch.Tensor  # [sampled tokens], in the order of the samples


@dataclass(frozen=True)
class Padded:
    """Each sample in a row of its own, filled up on the right: under causal attention no real token
    sees a padding token."""

    ids: torch.Tensor  # [samples, longest]
    rows: torch.Tensor  # [sampled tokens] -> the row and column of the output that predicts it
    columns: torch.Tensor  # [sampled tokens]
    targets: torch.Tensor  # [sampled tokens], in the order of the samples


def is_plain(config: Any) -> bool:
    """Whether every layer of a model is full attention to all that came before, without a window or
    a cap: then packs are exact. The state of linear attention and of a convolution runs on from one
    sequence into the next."""
    windowed = getattr(config, "sliding_window", None) and getattr(
        config, "use_sliding_window", True
    )
    kinds = set(getattr(config, "layer_types", None) or ())
    capped = getattr(config, "attn_logit_softcapping", None)
    return not windowed and not capped and kinds <= {"full_attention"}


def can_pack(model: Any) -> bool:
    """Whether a model of transformers can attend by `attention.attend`."""
    attends = model.config._attn_implementation in ("sdpa", ATTENTION)
    return is_plain(model.config.get_text_config()) and attends and not model._is_stateful


def row_lengths(positions: torch.Tensor | None) -> torch.Tensor | None:
    """[sequences] int32 of a pack whose positions [1, tokens] restart with every sequence; None of
    what is no pack."""
    if positions is None or positions.dim() != 2 or len(positions) != 1:
        return None
    starts = (positions[0] == 0).nonzero().flatten()
    ends = torch.cat([starts[1:], starts.new_tensor([positions.shape[1]])])
    return (ends - starts).to(torch.int32)


def packed(samples: Sequence[Sample], device: torch.device, share: bool = True) -> Pack:
    """`share`: a prompt stands there once for all its completions."""
    ids: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    before: list[list[int]] = [[] for _ in samples]
    for indices in by_prompt(samples, share):
        prompt, first = samples[indices[0]].prompt_ids, len(ids)
        ids += prompt
        positions += range(len(prompt))
        for index in indices:
            begin, completion = len(ids), samples[index].completion_ids.tolist()
            spans.append(Span(len(prompt), len(completion), index == indices[0]))
            rows = [first + len(prompt) - 1, *range(begin, begin + len(completion) - 1)]
            before[index] = sampled_of(samples[index], rows[: len(completion)])
            ids += completion
            positions += range(len(prompt), len(prompt) + len(completion))
    if device.type == "cpu" and (filling := -len(ids) % FILL):
        spans.append(Span(1, filling - 1, True))
        ids += [0] * filling
        positions += range(filling)
    return Pack(
        torch.tensor([ids], device=device),
        torch.tensor([positions], device=device),
        tuple(spans),
        torch.tensor([row for rows in before for row in rows], dtype=torch.long, device=device),
        targets_of(samples, device),
    )


def padded(samples: Sequence[Sample], device: torch.device) -> Padded:
    width = max(len(sample.prompt_ids) + len(sample.completion_ids) for sample in samples)
    ids = [(*sample.prompt_ids, *sample.completion_ids.tolist()) for sample in samples]
    before = [
        (row, column)
        for row, sample in enumerate(samples)
        for column in sampled_of(sample, range(len(sample.prompt_ids) - 1, len(ids[row]) - 1))
    ]
    rows, columns = torch.tensor(before, dtype=torch.long, device=device).reshape(-1, 2).T
    filled = [row + (0,) * (width - len(row)) for row in ids]
    return Padded(torch.tensor(filled, device=device), rows, columns, targets_of(samples, device))


def sampled_of(sample: Sample, values: Sequence[int]) -> list[int]:
    """Of a value for each completion token, those of the sampled ones."""
    return list(values if sample.sampled is None else itertools.compress(values, sample.sampled))


def targets_of(samples: Sequence[Sample], device: torch.device) -> torch.Tensor:
    """[sampled tokens], sample after sample."""
    tokens = [
        token for sample in samples for token in sampled_of(sample, sample.completion_ids.tolist())
    ]
    return torch.tensor(tokens, dtype=torch.long, device=device)


def by_length(samples: Sequence[Sample], count: int) -> list[list[int]]:
    """Indices, `count` together, those of like length."""
    lengths = [len(sample.prompt_ids) + len(sample.completion_ids) for sample in samples]
    order = sorted(range(len(samples)), key=lengths.__getitem__)
    return [order[i : i + count] for i in range(0, len(order), count)]


def by_prompt(samples: Sequence[Sample], share: bool = True) -> list[list[int]]:
    """The indices of the samples of each prompt, in the order in which the prompts first appear."""
    if not share:
        return [[index] for index in range(len(samples))]
    indices: dict[tuple[int, ...], list[int]] = {}
    for index, sample in enumerate(samples):
        indices.setdefault(sample.prompt_ids, []).append(index)
    return list(indices.values())


def packs(samples: Sequence[Sample], limit: int, share: bool = True) -> list[list[int]]:
    """Indices, those of a prompt together, in packs of at most `limit` tokens (a longer sequence
    alone), of about the same number of tokens each."""
    groups = by_prompt(samples, share)
    total = sum(len(samples[indices[0]].prompt_ids) for indices in groups)
    total += sum(len(sample.completion_ids) for sample in samples)
    even = min(limit, -(-total // max(1, -(-total // limit))))  # an equal part of the fewest packs
    filled: list[list[int]] = []
    used = limit + 1  # tokens of the newest pack
    for indices in groups:
        prompt = len(samples[indices[0]].prompt_ids)
        for index in indices:
            completion = len(samples[index].completion_ids)
            needed = completion + (prompt if index == indices[0] else 0)
            if used + needed > limit or used >= even:
                filled.append([])
                used, needed = 0, prompt + completion
            filled[-1].append(index)
            used += needed
    return filled

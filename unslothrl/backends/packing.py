"""Sequences one after the other in one row, so that no padding reaches the model.

    prompt A | completion | completion | completion | prompt B | completion | ...

Where the backend's attention can, a prompt stands there once for all its completions: their
positions go on from it, and each attends to it and to itself alone. So a group's prompt passes
through the linear layers once; attention, computed sequence by sequence, repeats it.

In a pack each sequence attends by itself, so that no mask of [tokens, tokens] is made. What lies
where travels where a mask would, as an int32 tensor [1, 1, sequences, 3]: transformers hands on
whatever has four dimensions. All else is PyTorch's own attention.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from unslothrl.records import Sample

ATTENTION = "unslothrl_packed"  # transformers' name of it; what is not packed it does as "sdpa"
FILL = 256  # on a CPU packs are filled up to so many tokens: oneDNN keeps 10 MB for each new shape


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


@dataclass(frozen=True)
class Pack:
    """What one forward pass gets, and where in its output the completions lie; of a row that
    several learners share, a learner's part."""

    ids: torch.Tensor  # [1, tokens]
    positions: torch.Tensor  # [1, tokens], restarting with every sequence
    spans: tuple[Span, ...]  # all sequences, in their order in the row
    rows: torch.Tensor  # [sampled tokens] -> the row of the output that predicts it
    targets: torch.Tensor  # [sampled tokens], in the order of the samples
    places: torch.Tensor  # [sampled tokens], among those of all learners


def is_plain(config: Any) -> bool:
    """Whether every layer of a model is full attention to all that came before, without a window or
    a cap: then packs are exact. The state of linear attention and of a convolution runs on from one
    sequence into the next."""
    is_used = getattr(config, "use_sliding_window", True)
    windowed = getattr(config, "sliding_window", None) and is_used
    kinds = set(getattr(config, "layer_types", None) or ())
    capped = getattr(config, "attn_logit_softcapping", None)
    return not windowed and not capped and kinds <= {"full_attention"}


def can_pack(model: Any) -> bool:
    """Whether a model of transformers can attend by `attend`."""
    attends = model.config._attn_implementation in ("sdpa", ATTENTION)
    return is_plain(model.config.get_text_config()) and attends and not model._is_stateful


def row_lengths(positions: torch.Tensor | None) -> torch.Tensor | None:
    """[sequences] int32 of a pack whose positions restart with every sequence; else None."""
    if positions is None or positions.dim() != 2 or len(positions) != 1:
        return None
    starts = (positions[0] == 0).nonzero().flatten()
    ends = torch.cat([starts[1:], starts.new_tensor([positions.shape[1]])])
    return (ends - starts).to(torch.int32)


def packed(
    samples: Sequence[Sample],
    device: torch.device,
    share: bool = True,
    part: int = 0,
    parts: int = 1,
) -> Pack:
    """`share`: a prompt stands there once for all its completions. The row is filled up to a
    multiple of `parts`, of which this is the `part`th."""
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
    if filling := -len(ids) % math.lcm(FILL if device.type == "cpu" else 1, parts):
        spans.append(Span(1, filling - 1, True))
        ids += [0] * filling
        positions += range(filling)
    own = range(part * len(ids) // parts, (part + 1) * len(ids) // parts)
    found = [(p, row - own.start) for p, row in enumerate(itertools.chain(*before)) if row in own]
    places, rows = torch.tensor(found, dtype=torch.long, device=device).reshape(-1, 2).T
    return Pack(
        torch.tensor([ids], device=device)[:, own.start : own.stop],
        torch.tensor([positions], device=device)[:, own.start : own.stop],
        tuple(spans),
        rows,
        targets_of(samples, device)[places],
        places,
    )


def padded(
    samples: Sequence[Sample], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each sample in a row of its own, filled up on the right, which no real token sees. -> (ids
    [samples, longest]; [2, sampled tokens] row and column of the output that predicts each; these
    tokens [sampled tokens], sample after sample)."""
    width = max(len(sample.prompt_ids) + len(sample.completion_ids) for sample in samples)
    ids = [(*sample.prompt_ids, *sample.completion_ids.tolist()) for sample in samples]
    before = [
        (row, column)
        for row, sample in enumerate(samples)
        for column in sampled_of(sample, range(len(sample.prompt_ids) - 1, len(ids[row]) - 1))
    ]
    places = torch.tensor(before, dtype=torch.long, device=device).reshape(-1, 2).T
    filled = [row + (0,) * (width - len(row)) for row in ids]
    return torch.tensor(filled, device=device), places, targets_of(samples, device)


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
    """Of one new token -> [rows, 1, heads, size]; the heads that share a key are its queries."""
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


def pack_inputs(pack: Pack) -> dict[str, torch.Tensor]:
    """What lies where travels as the attention mask."""
    where = torch.tensor(pack.spans, dtype=torch.int32)[None, None]  # read on the host
    return {"attention_mask": where}

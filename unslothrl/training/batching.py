"""From the samples of a step to the batches of its optimiser steps, and to each learner's part.

All learners wait for the slowest one, so what counts is the largest share. A learner computes a
prompt once for all its samples: prompts are dealt greedily, the most expensive first, each to the
learner with the least work. Then single samples move from the learner with the most work to the one
with the least, while that makes the largest share smaller and it is over `EVEN` times the mean.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from unslothrl.config.options import Config
from unslothrl.records import Batch, Sample, seed_of
from unslothrl.weights.shapes import shape_of

EVEN = 1.005  # of the mean: a largest share below it is good enough


@dataclass(frozen=True)
class Costs:
    """What samples cost a learner, in trained tokens that attend to nothing."""

    shares_prompts: bool = True  # whether a prompt is computed once for all its completions
    prompt_token: float = 1.0  # it does not pass through the output layer
    pair: float = 0.0  # a token that attends to one token, in all layers

    @classmethod
    def of(cls, config: Config) -> "Costs":
        """By the multiplications of the model's layers; tokens alone where its sizes are not known.
        A pair of tokens costs 2 x the attention's width: as two linear weights cost a token."""
        shares = config.backend != "unsloth"  # see backends/unsloth.py
        shape = shape_of(config.model)
        if shape is None:
            return cls(shares)
        linear = shape.linear_weights()
        whole = linear + shape.vocabulary * shape.hidden
        return cls(shares, linear / whole, 2 * shape.layers * shape.query / whole)

    def prompt(self, sample: Sample) -> float:
        """Of its prompt's passage through the linear layers."""
        return self.prompt_token * len(sample.prompt_ids)

    def completion(self, sample: Sample) -> float:
        """Of the rest: the completion, and the attention of the whole sequence, which is computed
        for every sample by itself."""
        completion = sample.length
        length = len(sample.prompt_ids) + completion
        return completion + self.pair * length * (length + 1) / 2

    def share(self, samples: Sequence[Sample]) -> float:
        """Of samples that one learner gets."""
        prompts = {s.prompt_ids: s for s in samples}.values() if self.shares_prompts else samples
        return sum(map(self.prompt, prompts)) + sum(map(self.completion, samples))


def balanced(samples: Sequence[Sample], learners: int, costs: Costs) -> list[list[int]]:
    """-> [learners] indices of each one's samples, ascending; empty where samples are too few."""
    if learners == 1:
        return [list(range(len(samples)))]
    together: dict[object, list[int]] = {}
    for index, sample in enumerate(samples):
        together.setdefault(sample.prompt_ids if costs.shares_prompts else index, []).append(index)
    groups = list(together.values())
    prompts = [costs.prompt(samples[group[0]]) for group in groups]
    own = [costs.completion(sample) for sample in samples]
    sizes = [prompts[n] + sum(own[i] for i in group) for n, group in enumerate(groups)]
    shares: list[dict[int, list[int]]] = [{} for _ in range(learners)]  # group -> samples of it
    loads = [0.0] * learners
    for number in sorted(range(len(groups)), key=lambda number: -sizes[number]):
        least = loads.index(min(loads))
        shares[least][number] = groups[number]
        loads[least] += sizes[number]
    while max(loads) > EVEN * sum(loads) / learners and _move_one(shares, loads, own, prompts):
        pass
    return [sorted(i for group in share.values() for i in group) for share in shares]


def _move_one(
    shares: list[dict[int, list[int]]], loads: list[float], own: list[float], prompts: list[float]
) -> bool:
    """Moves the sample from the largest share to the smallest that leaves the larger of the two
    smallest. -> False, with nothing moved, where none makes it smaller."""
    most, least = loads.index(max(loads)), loads.index(min(loads))
    best, found = loads[most] * (1 - 1e-9), None  # less is rounding
    for number, group in shares[most].items():
        arriving = 0.0 if number in shares[least] else prompts[number]
        leaving = prompts[number] if len(group) == 1 else 0.0
        for index in group:
            after = loads[most] - own[index] - leaving, loads[least] + own[index] + arriving
            if max(after) < best:
                best, found = max(after), (number, index, after)
    if found is None:
        return False
    number, index, (loads[most], loads[least]) = found
    left = [i for i in shares[most].pop(number) if i != index]
    if left:
        shares[most][number] = left
    shares[least][number] = [*shares[least].get(number, ()), index]
    return True


def batches(
    samples: Sequence[Sample], has_gradient: Sequence[bool], count: int, seed: int
) -> list[Batch]:
    """The samples in `count` batches of like size at random, one for each optimiser step. A batch's
    denominators count all its samples; those without a gradient, which add nothing, are left out.
    """
    order = list(range(len(samples)))
    if count > 1:
        random.Random(seed).shuffle(order)
    parts = [sorted(order[i::count]) for i in range(count)]
    return [
        Batch(
            tuple(samples[i] for i in part if has_gradient[i]),
            sequences=len(part),
            tokens=sum(samples[i].tokens for i in part),
            seed=seed_of(seed, number),
        )
        for number, part in enumerate(parts)
        if any(has_gradient[i] for i in part)
    ]


def split_batch(batch: Batch, learners: int, costs: Costs | None = None) -> list[Batch]:
    """[learners] parts, some maybe empty, that take about the same time, each with the whole
    batch's denominators."""
    ordered = sorted(batch.samples, key=lambda s: len(s.prompt_ids) + s.length)
    shares = balanced(ordered, learners, costs or Costs())
    return [
        replace(
            batch,
            samples=tuple(ordered[i] for i in share),
            seed=seed_of(batch.seed, "learner", rank),
        )
        for rank, share in enumerate(shares)
    ]

"""From the samples of a step to the batches of its optimiser steps, and to each learner's part."""

import random
from collections.abc import Sequence
from dataclasses import replace

from unslothrl.records import Batch, Sample, seed_of
from unslothrl.training import balancing
from unslothrl.training.balancing import Costs


def batches(
    samples: Sequence[Sample], has_gradient: Sequence[bool], count: int, seed: int
) -> list[Batch]:
    """The samples in `count` batches of like size at random, one for each optimiser step.

    A batch's denominators count all its samples: one without a gradient adds nothing, so leaving it
    out saves time and changes nothing else. A batch without any gradient is left out.
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
    """[learners] parts that take about the same time, each with the whole batch's denominators.

    Where there are fewer samples than learners, some parts have none.
    """
    ordered = sorted(batch.samples, key=lambda s: len(s.prompt_ids) + s.length)
    shares = balancing.balanced(ordered, learners, costs or Costs())
    parts = [tuple(ordered[i] for i in share) for share in shares]
    names = {id(batch.samples[place]): name for place, name in batch.traced.items()}
    return [
        replace(
            batch,
            samples=part,
            traced={place: names[id(s)] for place, s in enumerate(part) if id(s) in names}
            if names
            else {},
            seed=seed_of(batch.seed, "learner", rank),
        )
        for rank, part in enumerate(parts)
    ]

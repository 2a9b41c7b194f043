"""Batches of optimiser steps, and each learner's part of them."""

import dataclasses

import numpy as np
import pytest

from unslothrl.records import Sample
from unslothrl.training import batching


def sample(length: int, prompt: int = 2) -> Sample:
    ids = tuple(range(length))
    return Sample(tuple(range(prompt)), ids, (-0.5,) * length, np.ones(length, np.float32), 0)


def test_batches_share_no_sample_and_count_their_own():
    samples = [sample(length) for length in (1, 2, 3, 4)] * 3
    parts = batching.batches(samples, [True] * 12, 3, seed=5)
    assert [part.sequences for part in parts] == [4, 4, 4]
    assert sum(part.tokens for part in parts) == 30
    seen = [id(s) for part in parts for s in part.samples]
    assert len(seen) == 12
    for part in parts:
        assert part.tokens == sum(s.tokens for s in part.samples)
    again = batching.batches(samples, [True] * 12, 3, seed=6)
    assert [p.samples for p in again] != [p.samples for p in parts]


def test_samples_without_a_gradient_count_in_the_denominators_alone():
    samples = [sample(2), sample(5), sample(3), sample(7)]
    (batch,) = batching.batches(samples, [True, False, True, False], 1, seed=0)
    assert batch.samples == (samples[0], samples[2])
    assert (batch.sequences, batch.tokens) == (4, 17)


def test_tokens_of_an_environment_are_not_counted():
    two_of_five = dataclasses.replace(sample(5), sampled=(True, False, False, False, True))
    (batch,) = batching.batches([two_of_five, sample(3)], [True, True], 1, seed=0)
    assert batch.tokens == 5


def test_a_batch_without_any_gradient_is_left_out():
    assert batching.batches([sample(2)], [False], 1, seed=0) == []
    assert batching.batches([], [], 2, seed=0) == []
    assert len(batching.batches([sample(2), sample(3)], [True, False], 2, seed=0)) == 1


@pytest.mark.parametrize("learners", [1, 2, 3, 9, 20])
def test_learners_get_every_sample_once_with_the_whole_denominators(learners):
    (batch,) = batching.batches([sample(n) for n in range(1, 10)], [True] * 9, 1, seed=0)
    parts = batching.split_batch(batch, learners)
    assert len(parts) == learners
    assert {(part.sequences, part.tokens) for part in parts} == {(9, 45)}
    got = [s for part in parts for s in part.samples]
    assert sorted(map(id, got)) == sorted(map(id, batch.samples))
    for part in parts:
        lengths = [len(s.completion_ids) for s in part.samples]
        assert lengths == sorted(lengths)

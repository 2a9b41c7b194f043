"""Batches of optimiser steps, and each learner's part of them."""

import dataclasses
import itertools
import random
from functools import partial

import numpy as np
import pytest
from few_cases import few

from unslothrl.config.options import Config
from unslothrl.records import Sample
from unslothrl.training import updates
from unslothrl.training.updates import Costs, balanced


def of_problem(prompt: int, completion: int, problem: int = 0) -> Sample:
    ones = np.ones(completion, np.float32)
    return Sample((problem,) * prompt, (1,) * completion, (-0.5,) * completion, ones, 0)


sample = partial(of_problem, 2)  # of a completion's length


def test_batches_share_no_sample_and_count_their_own():
    samples = [sample(length) for length in (1, 2, 3, 4) * 3]
    parts = updates.batches(samples, 3, seed=5)
    assert [part.sequences for part in parts] == [4, 4, 4]
    assert sum(part.tokens for part in parts) == 30
    assert len({id(s) for part in parts for s in part.samples}) == 12
    assert all(part.tokens == sum(s.tokens for s in part.samples) for part in parts)
    others = updates.batches(samples, 3, seed=6)
    assert [part.samples for part in others] != [part.samples for part in parts]


def test_tokens_of_an_environment_are_not_counted():
    two_of_five = dataclasses.replace(sample(5), sampled=(True, False, False, False, True))
    (batch,) = updates.batches([two_of_five, sample(3)], 1, seed=0)
    assert batch.tokens == 5


def test_a_batch_without_any_gradient_is_left_out():
    without = dataclasses.replace(sample(2), has_gradient=False)
    assert updates.batches([without], 1, seed=0) == []
    assert updates.batches([], 2, seed=0) == []
    assert len(updates.batches([without, sample(3)], 2, seed=0)) == 1


@pytest.mark.parametrize("learners", [1, 2, 3, 9, 20])
def test_learners_get_every_sample_once_with_the_whole_denominators(learners):
    (batch,) = updates.batches([sample(n) for n in range(1, 10)], 1, seed=0)
    parts = updates.split_batch(batch, learners)
    assert len(parts) == learners
    assert {(part.sequences, part.tokens) for part in parts} == {(9, 45)}
    got = [s for part in parts for s in part.samples]
    assert sorted(map(id, got)) == sorted(map(id, batch.samples))
    lengths = [[s.tokens for s in part.samples] for part in parts]
    assert lengths == [sorted(each) for each in lengths]


TOKENS = Costs()


def drawn(prompts: int, candidates: int, seed: int, longest: int = 1200) -> list[Sample]:
    """Groups whose lengths have a long tail, as those of a policy that reasons."""
    draw, samples = random.Random(seed), []
    for problem in range(1, prompts + 1):
        prompt, hard = draw.randint(40, 350), draw.lognormvariate(0, 0.6)
        for _ in range(candidates):
            length = round(250 * hard * draw.lognormvariate(0, 0.7))
            samples.append(of_problem(prompt, max(8, min(longest, length)), problem))
    return samples


def loads(samples, shares, costs=TOKENS) -> list[float]:
    return [costs.share([samples[i] for i in share]) for share in shares]


def test_what_samples_cost_by_hand():
    """Two completions of 3 and 5 tokens on a prompt of 4, one of 2 on a prompt of 1."""
    samples = [of_problem(4, 3, 1), of_problem(4, 5, 1), of_problem(1, 2, 2)]
    assert TOKENS.share(samples) == 4 + 3 + 5 + 1 + 2
    assert Costs(shares_prompts=False).share(samples) == 7 + 9 + 3
    assert Costs(prompt_token=0.5).share(samples) == 2 + 8 + 0.5 + 2
    pairs = 7 * 8 / 2 + 9 * 10 / 2 + 3 * 4 / 2  # each token attends to itself and those before
    assert Costs(pair=0.1).share(samples) == pytest.approx(15 + 0.1 * pairs)


def test_costs_of_a_known_model():
    """Qwen2.5-7B by its config.json: attention of 8,192 tokens is a seventh of the whole."""
    costs = Costs.of(Config(backend="peft"))
    linear = 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18_944)
    whole = linear + 152_064 * 3584
    assert costs == Costs(True, linear / whole, 2 * 28 * 3584 / whole)
    assert 1 - 8192 / costs.completion(of_problem(0, 8192)) == pytest.approx(0.104, abs=0.001)
    assert not Costs.of(Config(backend="unsloth")).shares_prompts
    assert Costs.of(Config(model="nobody/knows-it", backend="peft")) == TOKENS


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        # four prompts of 10: no prompt is in both shares, where that costs no balance
        ([of_problem(10, n, prompt) for prompt in (1, 2, 3, 4) for n in (5, 9, 20)], [88, 88]),
        # a group is split where it must be
        ([of_problem(10, 40, 1) for _ in range(4)], [90, 90]),
        ([of_problem(10, length, 1) for length in (60, 20, 20, 20)], [70, 70]),
        # 5 + 5 against 4 + 3 + 3; dealt by length alone it would be 5 + 4 (+ 3) against 5 + 3
        ([of_problem(0, length) for length in (5, 5, 4, 3, 3)], [10, 10]),
    ],
)
def test_two_learners_compute_the_same(samples, expected):
    assert loads(samples, balanced(samples, 2, TOKENS)) == expected
    assert balanced(samples, 1, TOKENS) == [[*range(len(samples))]]  # one gets all, in their order


@pytest.mark.parametrize("learners", [2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_too_few_samples_leave_shares_empty(learners, count):
    samples = [of_problem(3, 4 + i, i) for i in range(count)]
    shares = balanced(samples, learners, TOKENS)
    assert len(shares) == learners
    assert sorted(i for share in shares for i in share) == list(range(count))
    assert sum(map(bool, shares)) == min(learners, count)


@pytest.mark.real
@pytest.mark.parametrize("costs", [TOKENS, Costs(shares_prompts=False), Costs(pair=0.01)])
@pytest.mark.parametrize("seed", few(range(6)))
def test_close_to_the_best_of_all_ways(seed, costs):
    """Against every way to deal seven samples to learners; greed may miss the best."""
    samples = drawn(3, 3, seed, longest=400)[:7]
    for learners in (2, 3):
        best = min(
            max(loads(samples, [[i for i in range(7) if way[i] == r] for r in range(learners)],
                      costs))
            for way in itertools.product(range(learners), repeat=7)
        )  # fmt: skip
        assert max(loads(samples, balanced(samples, learners, costs), costs)) <= 1.2 * best


@pytest.mark.parametrize("learners", [2, 4, 8])
@pytest.mark.parametrize("shape", [(30, 16), (8, 32), (64, 4)])
def test_real_lengths_are_dealt_within_a_percent(learners, shape):
    """Of the mean share; and to no more than 3% over what one learner would compute in all."""
    samples = drawn(*shape, seed=7)
    shares = balanced(samples, learners, TOKENS)
    assert sorted(i for share in shares for i in share) == list(range(len(samples)))
    found = loads(samples, shares)
    assert max(found) <= 1.01 * sum(found) / learners
    assert max(found) <= 1.03 * TOKENS.share(samples) / learners
    assert shares == balanced(samples, learners, TOKENS)

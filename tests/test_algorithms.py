"""Advantages, selection and losses against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unslothrl.algorithms import OBJECTIVES, advantages, diagnostics, losses, selection


def test_centred_takes_the_mean_off():
    # mean of 1, 0, 0, 1 is 1/2
    assert advantages.centred([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]


def test_standardised_divides_by_the_population_deviation():
    # mean 2, deviations -1 0 1 -> variance 2/3, std 0.81650; 1 / 0.81650 = 1.22474
    expected = [-1.2247448, 0.0, 1.2247448]
    assert advantages.standardised([1.0, 2.0, 3.0]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("rewards", [[0.3] * 3, [0.1] * 7, [1.3], [0.0, 0.0]])
@pytest.mark.parametrize("name", ["pg", "grpo"])
def test_a_group_of_equals_has_no_signal(name, rewards):
    # 0.1 * 7 does not sum to 0.7 in floating point: the advantage must be 0 all the same
    assert OBJECTIVES[name].advantages(rewards) == [0.0] * len(rewards)


def test_topk_keeps_the_best_in_candidate_order():
    assert selection.topk([0.1, 0.9, -1.0, 0.5], k=2, seed=0) == [1, 3]
    assert selection.topk([0.1, 0.9], k=2, seed=0) == [0, 1]


def test_ties_are_broken_by_the_seed():
    picks = {tuple(selection.topk([1.0] * 6, k=2, seed=seed)) for seed in range(40)}
    assert len(picks) > 5
    assert selection.topk([1.0] * 6, 2, seed=3) == selection.topk([1.0] * 6, 2, seed=3)


def test_pg_by_hand():
    # Sequences of 1 and 3 tokens, mean log-probabilities -1 and -2; advantages 2 and -1; N = 2:
    # -(2 * -1 + -1 * -2) / 2 = 0; with N = 4 over two micro-batches it would be halved.
    logprobs = torch.tensor([-1.0, -1.0, -2.0, -3.0], requires_grad=True)
    loss = losses.pg(logprobs, [2.0, -1.0], [1, 3], sequences=2)
    assert loss.value.item() == pytest.approx(0.0)
    loss.value.backward()
    # d/dlogp: -(A / length) / N: -(2/1)/2 = -1; -(-1/3)/2 = 1/6
    assert logprobs.grad.tolist() == pytest.approx([-1.0, 1 / 6, 1 / 6, 1 / 6])


def test_grpo_on_policy_is_minus_the_mean_advantage_with_the_gradient_of_pg():
    logprobs = torch.tensor([-1.0, -1.0, -2.0, -3.0], requires_grad=True)
    loss = losses.grpo(logprobs, [2.0, -1.0], [1, 3], sequences=2)
    assert loss.value.item() == pytest.approx(-0.5)  # -(2 - 1) / 2: rho is 1
    assert loss.clipped == 0
    loss.value.backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, 1 / 6, 1 / 6, 1 / 6])


def test_grpo_clips_what_has_moved_too_far():
    # ratios 1.5, 0.5, 1.5, 0.5 with advantages 1, 1, -1, -1 and clip 0.2:
    # min(1.5, 1.2) = 1.2 (clipped), min(0.5, 0.8) = 0.5, min(-1.5, -1.2) = -1.5,
    # min(-0.5, -0.8) = -0.8 (clipped); sum -0.6; N = 4, one token each: 0.15
    old = torch.zeros(4)
    logprobs = torch.tensor([math.log(1.5), math.log(0.5)] * 2, requires_grad=True)
    loss = losses.grpo(logprobs, [1.0, 1.0, -1.0, -1.0], [1] * 4, 4, old_logprobs=old)
    assert loss.value.item() == pytest.approx(0.15)
    assert loss.clipped == 2
    loss.value.backward()
    # unclipped ones: d/dlogp of -(ratio A) / 4 = -0.125 and +0.375
    assert logprobs.grad.tolist() == pytest.approx([0.0, -0.125, 0.375, 0.0])


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(1, 5), st.randoms())
@pytest.mark.parametrize("name", ["pg", "grpo"])
def test_micro_batches_add_up_to_the_batch(name, lengths, cut, random):
    cut = min(cut, len(lengths) - 1)
    logprobs = torch.tensor([random.uniform(-3, 0) for _ in range(sum(lengths))]).double()
    weights = [random.uniform(-2, 2) for _ in lengths]
    loss = OBJECTIVES[name].loss
    whole = loss(logprobs, weights, lengths, len(lengths)).value
    split = sum(lengths[:cut])
    parts = loss(logprobs[:split], weights[:cut], lengths[:cut], len(lengths)).value
    parts = parts + loss(logprobs[split:], weights[cut:], lengths[cut:], len(lengths)).value
    assert parts.item() == pytest.approx(whole.item(), abs=1e-12)


def test_sequence_means_of_an_empty_sequence_are_zero():
    assert losses.sequence_means(torch.tensor([3.0, 5.0]), [0, 2]).tolist() == [0.0, 4.0]


def test_diagnostics_by_hand():
    # differences 0 and ln 3: weights 1 and 3, (1 + 3)^2 / (2 (1 + 9)) = 0.8; one of two above 2
    sampler = np.array([-1.0, -1.0 - math.log(3)])
    found = diagnostics.sampler_agreement(sampler, np.array([-1.0, -1.0]))
    assert found["train/sampler_gap"] == pytest.approx(math.log(3) / 2)
    assert found["train/ess"] == pytest.approx(0.8)
    assert found["train/correction_truncated"] == 0.5
    # k3 at d = ln 2: 1/2 + 0.693147 - 1
    assert diagnostics.k3(np.array([math.log(2)]), np.array([0.0]))[0] == pytest.approx(0.1931472)

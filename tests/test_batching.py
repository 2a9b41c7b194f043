"""Selection, advantages and batches from hand-made groups."""

import dataclasses

import numpy as np
import pytest
from fakes import group

from unslothrl import batching
from unslothrl.algorithms import objectives
from unslothrl.types import Measured

GRPO, PG, DAPO, PPO = map(objectives.load, ("grpo", "pg", "dapo", "ppo"))


def one_batch(selected):
    (batch,) = selected.batches(1, seed=0)
    return batch


def test_the_best_are_selected_after_advantages_over_the_whole_group():
    selected = batching.select([group("a", [0.0, 1.0, 0.0, 1.0])], GRPO, "topk", k=2, seed=0)
    assert selected.chosen == [[1, 3]]
    # over all four: mean 1/2, std 1/2; over the two alone there would be no signal
    assert [round(a, 6) for a in selected.advantages[0]] == [-1, 1, -1, 1]
    assert selected.metrics()["train/selected_advantage_mean"] > 0.999
    assert [s.advantages.round(6).tolist() for s in selected.samples] == [[1, 1, 1], [1, 1, 1]]


def test_max_variance_compares_the_chosen_alone():
    # of 0 0.4 0.6 1 the two ends; among them mean 1/2: -1/2, 1/2. The others get nothing
    groups = [group("a", [0.0, 0.4, 0.6, 1.0])]
    selected = batching.select(groups, PG, "max_variance", k=2, seed=0)
    assert selected.chosen == [[0, 3]] and selected.advantages == [[-0.5, 0.0, 0.0, 0.5]]


def test_groups_without_signal_leave_the_batch_but_not_its_denominators():
    groups = [group("a", [0.0, 1.0], lengths=[2, 3]), group("b", [1.0, 1.0], lengths=[5, 7])]
    selected = batching.select(groups, GRPO, "topk", k=2, seed=0)
    batch = one_batch(selected)
    assert [len(sample.completion_ids) for sample in batch.samples] == [2, 3]
    assert (batch.sequences, batch.tokens) == (4, 17)
    assert selected.metrics()["reward/zero_signal_groups"] == 1


def test_with_a_kl_or_entropy_term_every_sample_has_a_gradient():
    for changes in ({"kl": "loss", "kl_coefficient": 0.1}, {"entropy_coefficient": 0.01}):
        objective = dataclasses.replace(GRPO, **changes)
        groups = [group("a", [0.0, 1.0]), group("b", [1.0, 1.0])]
        selected = batching.select(groups, objective, "topk", k=2, seed=0)
        assert len(one_batch(selected).samples) == 4


def test_a_batch_without_any_signal_is_empty():
    selected = batching.select([group("a", [1.0, 1.0])], GRPO, "topk", 2, 0)
    assert selected.batches(1, seed=0) == [] and not any(selected.pulls)
    assert batching.select([], GRPO, "topk", 2, 0).batches(2, seed=0) == []


def test_truncated_completions_count_in_the_statistics_and_not_in_the_loss():
    # mean 1/2 over all four, although two of them are not chosen from
    groups = [group("a", [0.0, 1.0, 0.0, 1.0], lengths=[2, 3, 4, 5], truncated=[0, 1])]
    centred_dapo = dataclasses.replace(DAPO, advantage="centred")
    selected = batching.select(groups, centred_dapo, "topk", k=3, seed=0)
    assert selected.chosen == [[2, 3]] and selected.advantages == [[-0.5, 0.5, -0.5, 0.5]]
    assert (one_batch(selected).sequences, one_batch(selected).tokens) == (2, 9)
    masked = [group("a", [0.0, 1.0], truncated=[0, 1])]
    assert batching.select(masked, DAPO, "topk", 2, 0).samples == ()


def test_parts_of_a_rollout_share_nothing_and_count_their_own():
    groups = [group(name, [0.0, 1.0, 0.5, 0.2], lengths=[1, 2, 3, 4]) for name in "abc"]
    selected = batching.select(groups, GRPO, "all", k=1, seed=0)
    parts = selected.batches(3, seed=5)
    assert [part.sequences for part in parts] == [4, 4, 4]
    assert sum(part.tokens for part in parts) == 30
    seen = [id(sample) for part in parts for sample in part.samples]
    assert sorted(seen) == sorted(map(id, selected.samples))
    for part in parts:
        assert part.tokens == sum(len(s.completion_ids) for s in part.samples)
    again = selected.batches(3, seed=6)
    assert [list(map(id, p.samples)) for p in again] != [list(map(id, p.samples)) for p in parts]


def test_penalties_come_off_before_rewards_are_compared():
    # rewards 1 0 less 0.75 and 0.25: 0.25 and -0.25
    groups = [group("a", [1.0, 0.0])]
    selected = batching.select(groups, PG, "topk", 1, 0, penalties=[[0.75, 0.25]])
    assert selected.rewards == [[0.25, -0.25]] and selected.advantages == [[0.25, -0.25]]
    assert selected.metrics()["reward/zero_signal_groups"] == 0


def measured(selected, values):
    samples = [
        dataclasses.replace(s, measured=Measured(np.zeros(len(v)), values=np.array(v, float)))
        for s, v in zip(selected.samples, values, strict=True)
    ]
    return selected.with_samples(samples)


def test_gae_gives_every_token_its_own_advantage():
    # one completion of 2 tokens, reward 2, values 0 and 1, gamma = lambda = 1:
    # returns 2 2; advantages 2 1. The other: 1 token, reward 0, value 0: 0. Whitened over 2 1 0:
    # mean 1, variance 2/3 -> 1.224745, 0, -1.224745
    selected = batching.select([group("a", [2.0, 0.0], lengths=[2, 1])], PPO, "all", 2, 0)
    found = batching.with_gae(measured(selected, [[0, 1], [0]]), gamma=1.0, lam=1.0)
    assert found.samples[0].returns.tolist() == [2, 2]
    assert found.samples[0].advantages.tolist() == pytest.approx([1.224745, 0], abs=1e-5)
    assert found.samples[1].advantages.tolist() == pytest.approx([-1.224745], abs=1e-5)
    assert found.advantages[0] == pytest.approx([0.6123724, -1.2247449], abs=1e-5)
    # a penalty of 1 on the first token of the first: its return falls to 1, the second's stays 2
    punished = batching.with_gae(
        measured(selected, [[0, 1], [0]]), 1.0, 1.0, penalties=[np.array([1.0, 0.0]), np.zeros(1)]
    )
    assert punished.samples[0].returns.tolist() == [1, 2]


def test_gae_needs_no_siblings_and_keeps_groups_of_equals():
    selected = batching.select([group("a", [1.0]), group("b", [1.0, 1.0])], PPO, "topk", 2, 0)
    assert all(selected.pulls) and len(one_batch(selected).samples) == 3
    with pytest.raises(ValueError, match="critic's values"):
        batching.with_gae(selected, 1.0, 0.95)


def test_learners_get_every_sample_once_with_the_whole_denominator():
    groups = [group(name, [0.0, 1.0, 0.5]) for name in "abc"]
    batch = one_batch(batching.select(groups, GRPO, "topk", k=3, seed=0))
    parts = batching.split_batch(batch, 2)
    assert sorted(len(part.samples) for part in parts) == [4, 5]
    assert {part.sequences for part in parts} == {9}
    assert sorted(id(s) for part in parts for s in part.samples) == sorted(map(id, batch.samples))
    assert len(batching.split_batch(batch, 20)) == 9  # a learner without samples gets no part


def test_shuffled_rewards_are_the_same_rewards_for_other_candidates():
    original = group("a", [float(i) for i in range(16)])
    shuffled = batching.shuffle_rewards(original, seed=1)
    assert sorted(shuffled.totals) == sorted(original.totals)
    assert shuffled.totals != original.totals
    assert shuffled.scores == original.scores  # what is reported stays true
    assert shuffled.completions == original.completions

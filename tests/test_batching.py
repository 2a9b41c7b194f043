"""Selection and batches from hand-made groups."""

from fakes import group

from unslothrl import batching
from unslothrl.algorithms import OBJECTIVES

GRPO = OBJECTIVES["grpo"]


def test_the_best_are_selected_after_advantages_over_the_whole_group():
    selected = batching.select([group("a", [0.0, 1.0, 0.0, 1.0])], GRPO, k=2, seed=0)
    assert selected.chosen == [[1, 3]]
    # over all four: mean 1/2, std 1/2; over the two alone there would be no signal
    assert [round(a, 6) for a in selected.advantages[0]] == [-1, 1, -1, 1]
    assert selected.metrics()["train/selected_advantage_mean"] > 0.999


def test_groups_without_signal_leave_the_batch_but_not_its_denominators():
    groups = [group("a", [0.0, 1.0], lengths=[2, 3]), group("b", [1.0, 1.0], lengths=[5, 7])]
    selected = batching.select(groups, GRPO, k=2, seed=0)
    batch = selected.batch()
    assert [len(sample.completion_ids) for sample in batch.samples] == [2, 3]
    assert (batch.sequences, batch.tokens) == (4, 17)
    assert selected.metrics()["reward/zero_signal_groups"] == 1


def test_a_batch_without_any_signal_is_empty():
    assert batching.select([group("a", [1.0, 1.0])], GRPO, 2, 0).batch().samples == ()


def test_learners_get_every_sample_once_with_the_whole_denominator():
    groups = [group(name, [0.0, 1.0, 0.5]) for name in "abc"]
    batch = batching.select(groups, GRPO, k=3, seed=0).batch()
    parts = batching.split_batch(batch, 2)
    assert sorted(len(part.samples) for part in parts) == [4, 5]
    assert {part.sequences for part in parts} == {9}
    assert sorted(s for part in parts for s in map(repr, part.samples)) == sorted(
        map(repr, batch.samples)
    )
    assert len(batching.split_batch(batch, 20)) == 9  # a learner without samples gets no part


def test_shuffled_rewards_are_the_same_rewards_for_other_candidates():
    original = group("a", [float(i) for i in range(16)])
    shuffled = batching.shuffle_rewards(original, seed=1)
    assert sorted(shuffled.totals) == sorted(original.totals)
    assert shuffled.totals != original.totals
    assert shuffled.scores == original.scores  # what is reported stays true
    assert shuffled.completions == original.completions

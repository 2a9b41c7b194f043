"""Selection, advantages and the KL in the reward from hand-made groups."""

import dataclasses
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import completion, group

from unslothrl.algorithms import objectives
from unslothrl.config.options import Config
from unslothrl.records import Completion, Failure, Group, Transcript, Turn
from unslothrl.rewards.scorer import FailureReport
from unslothrl.training import credit, updates
from unslothrl.training.metrics import rollout_metrics, selection_metrics

GRPO, PG, DAPO, PPO = map(objectives.load, ("grpo", "pg", "dapo", "ppo"))
KL = {"kl": "reward", "kl_estimator": "k1", "kl_coefficient": 0.5}


def unmeasured(samples):
    raise AssertionError("nothing has to be measured")


def assign(groups, objective, select, k, measure=unmeasured, **options):
    config = dataclasses.replace(Config(), select=select, topk=k, **options)
    assigned, samples = credit.assign(groups, objective, config, 0, measure)
    return SimpleNamespace(
        groups=assigned,
        chosen=[list(group.chosen) for group in assigned],
        advantages=[list(group.advantages) for group in assigned],
        samples=samples,
        metrics=selection_metrics(assigned),
    )


def one_batch(selected):
    (batch,) = updates.batches(selected.samples, 1, seed=0)
    return batch


def test_the_best_are_selected_after_advantages_over_the_whole_group():
    selected = assign([group("a", [0.0, 1.0, 0.0, 1.0])], GRPO, "topk", k=2)
    assert selected.chosen == [[1, 3]]
    # over all four: mean 1/2, std 1/2; over the two alone there would be no signal
    assert [round(a, 6) for a in selected.advantages[0]] == [-1, 1, -1, 1]
    assert selected.metrics["train/selected_advantage_mean"] > 0.999
    assert [s.advantages.round(6).tolist() for s in selected.samples] == [[1, 1, 1], [1, 1, 1]]


def test_max_variance_compares_the_chosen_alone():
    # of 0 0.4 0.6 1 the two ends; among them mean 1/2: -1/2, 1/2. The others get nothing
    selected = assign([group("a", [0.0, 0.4, 0.6, 1.0])], PG, "max_variance", k=2)
    assert selected.chosen == [[0, 3]] and selected.advantages == [[-0.5, 0.0, 0.0, 0.5]]


def test_groups_without_signal_leave_the_batch_but_not_its_denominators():
    groups = [group("a", [0.0, 1.0], lengths=[2, 3]), group("b", [1.0, 1.0], lengths=[5, 7])]
    selected = assign(groups, GRPO, "topk", k=2)
    batch = one_batch(selected)
    assert [sample.tokens for sample in batch.samples] == [2, 3]
    assert (batch.sequences, batch.tokens) == (4, 17)
    assert selected.metrics["reward/zero_signal_groups"] == 1


def test_with_a_kl_or_entropy_term_every_sample_has_a_gradient():
    for changes in ({"kl": "loss", "kl_coefficient": 0.1}, {"entropy_coefficient": 0.01}):
        objective = dataclasses.replace(GRPO, **changes)
        groups = [group("a", [0.0, 1.0]), group("b", [1.0, 1.0])]
        assert len(one_batch(assign(groups, objective, "topk", k=2)).samples) == 4


def test_nothing_has_a_gradient_without_any_signal():
    equal = assign([group("a", [1.0, 1.0])], GRPO, "topk", 2)
    assert [sample.has_gradient for sample in equal.samples] == [False, False]
    assert assign([], GRPO, "topk", 2).samples == []
    assert assign([], dataclasses.replace(PG, **KL), "all", 2).groups == []  # nor measured


def test_truncated_completions_count_in_the_statistics_and_not_in_the_loss():
    # mean 1/2 over all four, although two of them are not chosen from
    groups = [group("a", [0.0, 1.0, 0.0, 1.0], lengths=[2, 3, 4, 5], truncated=[0, 1])]
    selected = assign(groups, dataclasses.replace(DAPO, advantage="centred"), "topk", k=3)
    assert selected.chosen == [[2, 3]] and selected.advantages == [[-0.5, 0.5, -0.5, 0.5]]
    assert (one_batch(selected).sequences, one_batch(selected).tokens) == (2, 9)
    assert assign([group("a", [0.0, 1.0], truncated=[0, 1])], DAPO, "topk", 2).samples == []


def measure_with(calls, values=None, policy=-1.0, reference=-1.0):
    """As learners would, the critic's `values` by tokens; notes how many samples a call has."""

    def measure(samples):
        calls.append(len(samples))
        return [
            dataclasses.replace(
                sample,
                logprobs=np.full(sample.tokens, policy),
                reference=np.full(sample.tokens, reference),
                values=None if values is None else np.array(values[sample.tokens], float),
            )
            for sample in samples
        ]

    return measure


def test_only_chosen_samples_with_a_gradient_are_measured_for_several_updates():
    groups, calls = [group("a", [0.0, 1.0, 0.5]), group("b", [1.0, 1.0, 1.0])], []
    selected = assign(groups, GRPO, "topk", 2, measure_with(calls), updates_per_rollout=2)
    assert calls == [2]
    assert [s.logprobs is not None for s in selected.samples] == [True, True, False, False]
    assign(groups[1:], GRPO, "topk", 2, unmeasured, updates_per_rollout=2)  # nothing to train on


def test_kl_comes_off_before_rewards_are_compared():
    # k1 of 2 x 3 tokens, 0.5 x 0.5 each: rewards 1 and 0 less 0.25 x 1 and 0.25 x 3
    groups = [group("a", [1.0, 0.0], lengths=[1, 3])]
    calls: list[int] = []
    objective = dataclasses.replace(PG, **KL)
    measure = measure_with(calls, policy=-1.0, reference=-1.5)
    selected = assign(groups, objective, "topk", 1, measure, updates_per_rollout=2)
    assert selected.advantages == [[0.75, -0.75]] and selected.chosen == [[0]]
    assert calls == [2]  # every candidate, once
    # equal rewards and unequal KL are a signal for the policy, not for the metric of the rewards
    selected = assign([group("a", [1.0, 1.0], lengths=[1, 3])], objective, "all", 2, measure)
    assert selected.advantages == [[0.25, -0.25]]
    assert all(sample.has_gradient for sample in selected.samples)
    assert selected.metrics["reward/zero_signal_groups"] == 1
    with pytest.raises(ValueError, match="reference"):  # not measured
        assign(groups, objective, "all", 2, list)


def test_gae_gives_every_token_its_own_advantage():
    # one completion of 2 tokens, reward 2, values 0 and 1, gamma = lambda = 1:
    # returns 2 2; advantages 2 1. The other: 1 token, reward 0, value 0: 0. Whitened over 2 1 0:
    # mean 1, variance 2/3 -> 1.224745, 0, -1.224745
    groups = [group("a", [2.0, 0.0], lengths=[2, 1])]
    options = {"gamma": 1.0, "gae_lambda": 1.0}
    measure = measure_with([], values={2: [0, 1], 1: [0]})
    selected = assign(groups, PPO, "all", 2, measure, **options)
    assert selected.samples[0].returns.tolist() == [2, 2]
    assert selected.samples[0].advantages.tolist() == pytest.approx([1.224745, 0], abs=1e-5)
    assert selected.samples[1].advantages.tolist() == pytest.approx([-1.224745], abs=1e-5)
    assert selected.advantages[0] == pytest.approx([0.6123724, -1.2247449], abs=1e-5)
    # a KL of 1 at each token: their rewards are -1 1 and -1, the returns 0 1 and -1
    objective = dataclasses.replace(PPO, **{**KL, "kl_coefficient": 1.0})
    measure = measure_with([], values={2: [0, 1], 1: [0]}, policy=-1.0, reference=-2.0)
    punished = assign(groups, objective, "all", 2, measure, **options)
    assert [s.returns.tolist() for s in punished.samples] == [[0, 1], [-1]]


def test_gae_needs_no_siblings_and_keeps_groups_of_equals():
    groups = [group("a", [1.0]), group("b", [1.0, 1.0])]
    calls: list[int] = []
    selected = assign(groups, PPO, "topk", 2, measure_with(calls, values={3: [0, 0, 0]}))
    assert len(one_batch(selected).samples) == 3 and calls == [3]
    with pytest.raises(ValueError, match="critic's values"):
        assign(groups, PPO, "topk", 2, measure_with([]))


def test_per_token_arrays_are_over_the_sampled_tokens():
    made = group("a", [1.0, 0.0], lengths=[4, 3])
    mixed = dataclasses.replace(  # an environment's two tokens are in the middle of four
        made.completions[0], sampled=(True, False, False, True), logprobs=(-0.5, 0.0, 0.0, -0.7)
    )
    groups = [dataclasses.replace(made, completions=(mixed, made.completions[1]))]
    first, second = assign(groups, PG, "all", 2).samples
    assert first.sampler_logprobs == pytest.approx([-0.5, -0.7])
    assert tuple(first.sampled) == (True, False, False, True)
    assert first.advantages.tolist() == [0.5, 0.5] and len(first.completion_ids) == 4
    assert second.sampled is None and second.tokens == 3
    # the reward stands at the last sampled token, and the KL at the sampled ones alone: each has
    # 0.5 x 0.5: returns 1 - 0.5 and 1 - 0.25
    measure = measure_with([], values={2: [0, 0], 3: [0, 0, 0]}, policy=-1.0, reference=-1.5)
    objective = dataclasses.replace(PPO, **KL)
    first, _ = assign(groups, objective, "all", 2, measure, gae_lambda=1.0).samples
    assert first.returns.tolist() == [0.5, 0.75]


REWARDS = (1.0, 0.0, 3.0, 2.0)


def rewritten() -> Completion:
    """Two sequences: 2 tokens after (5, 6); an observation of 2 and 1 token after (7,)."""
    first = Completion.drawn((11, 12), (-0.25, -0.5), "stop", 3)
    second = Completion((8, 9, 13), (0.0, 0.0, -0.75), (False, False, True), (4, 4, 4), "stop")
    turns = (Turn("a", "b", 0.5, calls=2, failed_calls=1), Turn("c", reward=0.5))
    return dataclasses.replace(
        second, transcript=Transcript(turns, "P", "", (7,), (((5, 6), first),))
    )


def with_lost() -> Group:
    """Of four candidates the third is lost, whose reward would be the best."""
    made = group("a", list(REWARDS))
    first, second, third, fourth = made.completions
    lost = dataclasses.replace(third, finish_reason="lost")
    return dataclasses.replace(made, completions=(first, second, lost, fourth))


def test_each_sequence_is_a_sample_with_the_episodes_advantage():
    made = group("a", [0.0, 1.0])
    made = dataclasses.replace(made, completions=(rewritten(), made.completions[1]))
    selected = assign([made], GRPO, "topk", k=2)
    assert selected.chosen == [[0, 1]] and [s.row for s in selected.samples] == [0, 0, 1]
    first, second, _ = selected.samples
    assert (first.prompt_ids, tuple(first.completion_ids), first.tokens) == ((5, 6), (11, 12), 2)
    assert (second.prompt_ids, tuple(second.completion_ids), second.tokens) == ((7,), (8, 9, 13), 1)
    assert tuple(second.sampled) == (False, False, True)
    assert tuple(second.sampler_logprobs) == (-0.75,)
    found = [sample.advantages.round(6).tolist() for sample in selected.samples]
    assert found == [[-1, -1], [-1], [1, 1, 1]]
    assert (one_batch(selected).sequences, one_batch(selected).tokens) == (3, 6)


def test_the_tokens_and_versions_of_an_episode_are_those_of_all_its_sequences():
    made = rewritten()
    assert made.version_counts == {3: 2, 4: 1} and made.policy_version == 3
    back = pickle.loads(pickle.dumps(made))
    assert back == made and back.version_counts == {3: 2, 4: 1}
    assert back.sequences(group("a", [0.0]).task) == made.sequences(group("a", [0.0]).task)
    unplayed = dataclasses.replace(completion(0), finish_reason="lost")
    assert unplayed.policy_version == -1 and unplayed.is_lost


def test_a_lost_candidate_is_neither_trained_on_nor_compared_with():
    """Of 1, 0 and 2 the mean is 1 and the deviation sqrt(2/3)."""
    selected = assign([with_lost()], GRPO, "topk", k=4)
    assert selected.chosen == [[0, 1, 3]]
    assert selected.advantages[0] == pytest.approx([0.0, -1.224745, 0.0, 1.224745], abs=1e-6)
    assert assign([with_lost()], GRPO, "topk", k=1).chosen == [[3]]
    calls: list[int] = []  # a prompt may be lost because it is too long for the learner
    selected = assign([with_lost()], dataclasses.replace(GRPO, **KL), "all", 4, measure_with(calls))
    assert calls == [3] and [sample.row for sample in selected.samples] == [0, 1, 3]


def test_a_group_whose_candidates_are_all_lost_trains_nothing():
    lost = tuple(dataclasses.replace(c, finish_reason="lost") for c in with_lost().completions)
    made = dataclasses.replace(with_lost(), completions=lost)
    selected = assign([made, group("b", [0.0, 1.0])], GRPO, "topk", k=4)
    assert selected.chosen == [[], [0, 1]] and selected.advantages[0] == [0.0] * 4
    assert selected.metrics["reward/zero_signal_groups"] == 1


def test_shuffling_gives_the_same_rewards_to_others_but_leaves_lost_ones_where_they_are():
    made = with_lost()
    shuffled = [credit.shuffle_rewards(made, seed) for seed in range(40)]
    orders = {each.rewards["accuracy"] for each in shuffled}
    assert len(orders) == 6 and {rewards[2] for rewards in orders} == {3.0}
    assert all(sorted(rewards) == sorted(REWARDS) for rewards in orders)
    for each in shuffled:  # what is reported stays true
        assert (each.scores, each.completions) == (made.scores, made.completions)


def test_the_metrics_of_episodes():
    made = dataclasses.replace(with_lost(), completions=(rewritten(), *with_lost().completions[1:]))
    metrics = rollout_metrics([made], 0, 2.0)
    expected = {"reward/mean": 1.0, "rollout/tokens": 3 + 3 * 3}  # the mean of 1, 0 and 2
    expected |= {"episode/turns": 2, "episode/tool_calls": 2, "episode/failed_tool_calls": 1}
    expected |= {"episode/sequences": 2, "episode/observed_tokens": 2, "episode/lost": 1}
    assert metrics == metrics | expected
    assert not [name for name in rollout_metrics([group("a", [1.0])], 0, 1.0) if "episode" in name]


def test_a_lost_episode_is_noted_once_a_kind():
    notes: list[str] = []
    failure = Failure("environment", "KeyError: 3 (x.py line 1)", "", 2)
    made = dataclasses.replace(with_lost(), failures=(failure,))
    report = FailureReport(notes.append)
    assert [report.check([made]), report.check([made])] == [1, 1]
    assert notes == ["an episode is lost: its environment failed: KeyError: 3 (x.py line 1)"]


@pytest.mark.parametrize(
    ("rewards", "what"),
    [
        ([[1.0, 1.0], [0.0, 0.0]], "rewards are equal"),
        ([[1.0, 0.0], [0.0, 0.0]], "advantages are 0"),
    ],
)
def test_why_a_step_has_nothing_to_learn_from(rewards, what):
    groups = [group(str(at), each) for at, each in enumerate(rewards)]
    samples = assign(groups, GRPO, "topk", k=2).samples or [None]
    assert credit.why_nothing(groups, samples).endswith(f"2 groups all {what}")


def test_a_right_answer_that_no_reward_reads_is_counted():
    def said(*texts):
        made = group("a", [0.0] * len(texts))
        completions = map(Completion.of_text, texts)
        return credit.why_nothing(
            [dataclasses.replace(made, completions=tuple(completions))], [None]
        )

    gold = group("a", [0.0]).task.answer
    assert said("no", f"<answer>{gold} </answer>") == (
        "all rewards are 0, but 1 of 2 completions have the right answer between <answer> tags: "
        "the reward does not read that form"
    )
    assert "in \\boxed{}" in said(f"\\boxed{{{gold}}}")
    assert said("no", "<answer>another</answer>") == "all rewards are 0"
    unasked = dataclasses.replace(group("a", [0.0]).task, answer="")
    empty = dataclasses.replace(
        group("a", [0.0]), task=unasked, completions=(Completion.of_text("<answer></answer>"),)
    )
    assert credit.why_nothing([empty], [None]) == "all rewards are 0"

"""Credit where there is an environment: episodes of several sequences, and lost ones."""

import dataclasses
import pickle

import pytest
from fakes import completion, group
from test_credit import GRPO, assign, one_batch

from unslothrl.records import Completion, Failure, Group, Transcript, Turn
from unslothrl.rewards.scorer import FailureReport
from unslothrl.training import credit
from unslothrl.training.metrics import rollout_metrics

REWARDS = (1.0, 0.0, 3.0, 2.0)


def rewritten() -> Completion:
    """Two sequences: 2 tokens after the prompt (5, 6), an observation of 2 and 1 token after
    (7,)."""
    first = Completion.drawn((11, 12), (-0.25, -0.5), "stop", 3)
    second = Completion((8, 9, 13), (0.0, 0.0, -0.75), (False, False, True), (4, 4, 4), "stop")
    turns = (Turn("a", "b", 0.5, calls=2, failed_calls=1), Turn("c", reward=0.5))
    return dataclasses.replace(
        second, transcript=Transcript(turns, "P", "", (7,), (((5, 6), first),))
    )


def with_lost() -> Group:
    """Of four candidates the third is lost, whose reward would be the best."""
    made = group("a", list(REWARDS))
    completions = list(made.completions)
    completions[2] = dataclasses.replace(completions[2], finish_reason="lost")
    return dataclasses.replace(made, completions=tuple(completions))


def test_each_sequence_is_a_sample_with_the_episodes_advantage():
    made = group("a", [0.0, 1.0])
    made = dataclasses.replace(made, completions=(rewritten(), made.completions[1]))
    selected = assign([made], GRPO, "topk", k=2)
    assert selected.chosen == [[0, 1]] and selected.owners == ((0, 0), (0, 0), (0, 1))
    first, second, other = selected.samples
    assert (first.prompt_ids, tuple(first.completion_ids), first.tokens) == ((5, 6), (11, 12), 2)
    assert (second.prompt_ids, tuple(second.completion_ids), second.tokens) == ((7,), (8, 9, 13), 1)
    assert tuple(second.sampled) == (False, False, True) and tuple(second.sampler_logprobs) == (
        -0.75,
    )
    assert first.advantages.round(6).tolist() == [-1, -1]
    assert second.advantages.round(6).tolist() == [-1]
    assert other.advantages.round(6).tolist() == [1, 1, 1]
    batch = one_batch(selected)
    assert (batch.sequences, batch.tokens) == (3, 6)


def test_the_tokens_and_versions_of_an_episode_are_those_of_all_its_sequences():
    made = rewritten()
    assert made.version_counts == {3: 2, 4: 1} and made.policy_version == 3
    back = pickle.loads(pickle.dumps(made))
    assert back == made and back.version_counts == {3: 2, 4: 1}
    assert back.sequences(group("a", [0.0]).task) == made.sequences(group("a", [0.0]).task)


def test_a_lost_candidate_is_neither_trained_on_nor_compared_with():
    """Of 1, 0 and 2 the mean is 1 and the deviation sqrt(2/3)."""
    selected = assign([with_lost()], GRPO, "topk", k=4)
    assert selected.chosen == [[0, 1, 3]]
    expected = [0.0, -1.224745, 0.0, 1.224745]
    assert selected.advantages[0] == pytest.approx(expected, abs=1e-6)
    assert assign([with_lost()], GRPO, "topk", k=1).chosen == [[3]]


def test_a_group_whose_candidates_are_all_lost_trains_nothing():
    made = with_lost()
    lost = tuple(dataclasses.replace(c, finish_reason="lost") for c in made.completions)
    made = dataclasses.replace(made, completions=lost)
    selected = assign([made, group("b", [0.0, 1.0])], GRPO, "topk", k=4)
    assert selected.chosen == [[], [0, 1]] and selected.advantages[0] == [0.0] * 4
    assert selected.metrics()["reward/zero_signal_groups"] == 1


def test_shuffling_leaves_lost_rewards_where_they_are():
    orders = {credit.shuffle_rewards(with_lost(), seed).rewards["accuracy"] for seed in range(40)}
    assert len(orders) == 6 and {rewards[2] for rewards in orders} == {3.0}
    assert all(sorted(rewards) == sorted(REWARDS) for rewards in orders)


def test_the_metrics_of_episodes():
    made = dataclasses.replace(with_lost(), completions=(rewritten(), *with_lost().completions[1:]))
    metrics = rollout_metrics([made], 0, 2.0)
    assert metrics["reward/mean"] == pytest.approx(1.0)  # of 1, 0 and 2
    assert metrics["rollout/tokens"] == 3 + 3 * 3
    assert metrics["episode/turns"] == 2 and metrics["episode/tool_calls"] == 2
    assert metrics["episode/failed_tool_calls"] == 1 and metrics["episode/sequences"] == 2
    assert metrics["episode/observed_tokens"] == 2 and metrics["episode/lost"] == 1
    assert not [name for name in rollout_metrics([group("a", [1.0])], 0, 1.0) if "episode" in name]


def test_a_lost_episode_is_noted_once_a_kind():
    notes: list[str] = []
    made = dataclasses.replace(
        with_lost(), failures=(Failure("environment", "KeyError: 3 (x.py line 1)", "", 2),)
    )
    report = FailureReport(notes.append)
    assert [report.check([made]), report.check([made])] == [1, 1]
    assert notes == ["an episode is lost: its environment failed: KeyError: 3 (x.py line 1)"]


def test_an_unplayed_episode_has_no_tokens():
    made = dataclasses.replace(completion(0), finish_reason="lost")
    assert made.policy_version == -1 and made.is_lost

"""What a step is trained on while actors draw ahead: nothing too old, twice, or lost."""

import copy
from dataclasses import replace

import pytest
from fake_cluster import FakeCluster, Published, Target, holder
from fakes import FakeTasks, FakeView, completion, task

from unslothrl.checkpoints.store import RunState, from_jsonl, to_jsonl
from unslothrl.config.options import Config
from unslothrl.config.parts import objective_of, with_objective
from unslothrl.records import Assignment, Group
from unslothrl.rewards.scorer import FailureReport
from unslothrl.tracking.metrics import Timer
from unslothrl.training.group_source import GroupSource
from unslothrl.training.overlap import OverlappedSource
from unslothrl.training.rollouts import RolloutStream
from unslothrl.weights.adapter import Adapter

BATCH, STEPS = 4, 6


class LimitedView(FakeView):
    """Ends a test that waits for what never comes."""

    waits = 0

    def progress(self, *arguments) -> None:
        self.waits += 1
        assert self.waits < 200


class Run:
    """Steps without learners: every step publishes a version."""

    def __init__(self, max_staleness: int, actors: int = 2, tasks=None, **options):
        given = {"batch_size": BATCH, "num_candidates": 2, "topk": 2, **options}
        self.config = with_objective(Config(learner="grpo", max_staleness=max_staleness, **given))
        self.cluster = FakeCluster(actors, lambda assignment, candidate: candidate == 0)
        self.stream = RolloutStream(self.cluster, 0, overlaps=True)
        self.state, self.tasks = RunState(), tasks or FakeTasks()
        self.source = self.source_of(OverlappedSource, self.stream)
        self.publish()

    def source_of(self, kind, stream):
        view, config = LimitedView(), self.config
        report = FailureReport(view.note)
        return kind(config, objective_of(config), self.tasks, stream, report, view, STEPS)

    @classmethod
    def resumed(cls, max_staleness: int, state: RunState, *complete) -> "Run":
        run = cls(max_staleness)
        run.state = state
        run.source.restore(state, *complete)
        run.publish()
        return run

    def steps(self, count: int) -> list[Group]:
        """What is trained on."""
        return [group for _ in range(count) for group in self.step()[0]]

    def publish(self) -> None:
        version = self.state.policy_version
        self.stream.publish(Published(Adapter.of(version, b"weights", "{}")), version)

    def step(self):
        groups = self.source.draw(self.state, Timer())
        self.state.policy_version += 1
        self.publish()
        self.state.step += 1
        return groups


def numbers_of(groups) -> list[int]:
    return [int(group.task.id) for group in groups]


def given_to(run: Run) -> list[Assignment]:
    return [each for process in run.cluster.processes.values() for each in process.target.given]


@pytest.mark.parametrize("max_staleness", [1, 2, 3])
def test_every_prompt_is_trained_on_once_and_none_is_too_old(max_staleness):
    run = Run(max_staleness)
    seen = []
    for step in range(1, STEPS + 1):
        groups, _, metrics = run.step()
        seen += numbers_of(groups)
        shares = [metrics[f"rollout/staleness_{n}"] for n in range(max_staleness + 1)]
        mean = sum(n * share for n, share in enumerate(shares))
        assert metrics["rollout/staleness"] <= max_staleness and sum(shares) == pytest.approx(1)
        assert metrics["rollout/staleness_mean"] == pytest.approx(mean)
        left = min(max_staleness, STEPS - step) * BATCH
        assert len(run.source.outstanding) == left == len(run.state.outstanding)
    assert sorted(seen) == list(range(STEPS * BATCH)) and run.source.dropped == 0
    assert metrics["rollout/staleness"] > 0  # it really is ahead


def test_a_late_group_is_waited_for_when_it_is_due_and_passed_over_before():
    run = Run(1)
    late = run.cluster.processes["actor-1"]
    late.is_hanging = True
    run.source.refill(run.state)  # two batches, of version 0
    held = [i for i in run.stream.in_flight if holder(run.stream, i) == "actor-1"]
    for _ in range(20):
        run.stream.pump()
    assert set(run.stream.finished) == {0, 2, 4, 6} and set(held) == {1, 3, 5, 7}
    assert run.source.choose(2, version=0) == [0, 2]  # the second is of the look-ahead
    assert run.source.choose(4, version=0) is None  # 0.3 of a batch of 4 is no more than 2
    assert run.source.choose(2, version=1) is None  # 1 is due now
    late.is_hanging = False
    while len(run.stream.finished) < 8:
        run.stream.pump()
    assert run.source.choose(4, version=1) == [0, 1, 2, 3]


def test_what_is_too_old_is_counted_and_drawn_again_with_other_seeds():
    run = Run(1)
    run.step()
    run.state.policy_version += 5  # as if an actor had loaded nothing for long
    run.publish()
    groups, _, metrics = run.source.draw(run.state, Timer())
    assert metrics["rollout/dropped_groups"] == BATCH and metrics["rollout/staleness"] == 0
    assert numbers_of(groups) == [8, 9, 10, 11]
    again = run.source.outstanding.values()
    assert [(each.position, each.attempt) for each in again] == [(n, 1) for n in range(4, 8)]
    while any(index in run.stream.in_flight for index in run.source.outstanding):
        run.stream.pump()
    seeds = {each.seed for each in given_to(run) if each.index in run.source.outstanding}
    assert seeds == {(0, "position", n, 1) for n in range(4, 8)}


class Losing(Target):
    """The environment of task 18 fails before anything is drawn."""

    def collect(self, *arguments):
        groups, done = super().collect(*arguments)
        lost = {"completions": (replace(completion(0), finish_reason="lost"),) * 2}
        return [(i, replace(g, **lost if g.task.id == "18" else {})) for i, g in groups], done


def test_a_group_without_any_token_is_never_too_old():
    run = Run(1)
    for process in run.cluster.processes.values():
        process.target = Losing(process.name, run.cluster.is_right)
    steps = [run.step() for _ in range(STEPS)]
    assert sorted(numbers_of(g for groups, *_ in steps for g in groups)) == list(range(24))
    assert run.source.dropped == 0 and {m["rollout/staleness"] for *_, m in steps} == {0, 1}


def test_what_was_drawn_ahead_is_drawn_again_by_a_resumed_run():
    first = Run(2)
    trained = first.steps(2)
    saved = copy.deepcopy(first.state)
    assert saved.outstanding == list(range(8, 16)) and saved.batches == [BATCH, BATCH]
    seen = numbers_of(trained + Run.resumed(2, saved).steps(STEPS - 2))
    assert sorted(seen) == list(range(STEPS * BATCH))


def test_a_resumed_run_trains_on_the_groups_that_were_complete_as_they_were_drawn():
    first = Run(2)
    first.step()
    while len(first.stream.finished) < len(first.source.outstanding) - 3:
        first.stream.pump()
    saved, ahead = copy.deepcopy(first.state), list(first.source.ahead())
    assert {each.group.policy_version for each in ahead} >= {0} and len(ahead) >= 5
    second = Run.resumed(2, saved, from_jsonl(to_jsonl(ahead)))
    groups = second.steps(STEPS - 1)
    assert sorted(numbers_of(groups)) == list(range(BATCH, STEPS * BATCH))
    trained = {group.task.id: group for group in groups}
    assert all(trained[each.group.task.id] == each.group for each in ahead)  # tasks included
    assert not {a.task.id for a in given_to(second)} & {each.group.task.id for each in ahead}


def test_what_was_drawn_ahead_is_drawn_first_where_a_resumed_run_no_longer_overlaps():
    first = Run(2, tasks=ShortEpisodes())
    seen = numbers_of(first.steps(1))
    saved, sizes = copy.deepcopy(first.state), []
    assert saved.batches == [4, 2]
    source = first.source_of(GroupSource, RolloutStream(FakeCluster(2), 0))
    source.restore(saved)
    for _ in range(STEPS - 1):
        groups = source.draw(saved, Timer())[0]
        sizes.append(len(groups))
        seen += numbers_of(groups)
        saved.step += 1
    assert sizes == [4, 2, 4, 4, 2] and sorted(seen) == list(range(20))
    assert saved.outstanding == saved.batches == []


class ShortEpisodes(FakeTasks):
    """Ten tasks an episode, so that batches of four are four, four and two."""

    def draw(self, position, count):
        return super().draw(position, min(count, 10 - position % 10))


def test_a_batch_ends_with_the_episode():
    run = Run(1, tasks=ShortEpisodes())
    sizes = [len(run.step()[0]) for _ in range(STEPS)]
    assert sizes == [4, 4, 2, 4, 4, 2] and run.state.position == 20


class SomeUnusable(FakeTasks):
    def draw(self, position, count):
        usable = [n for n in range(position, position + 2 * count) if n % 3][:count]
        return [task(str(n)) for n in usable], usable[-1] + 1


def test_positions_are_those_of_the_data_where_rows_cannot_be_used():
    run = Run(1, tasks=SomeUnusable())
    run.step()
    assert run.state.outstanding == [7, 8, 10, 11]


def test_groups_that_are_filtered_out_are_replaced_and_the_next_batch_stays_whole():
    run = Run(1, filter_low=0.4, filter_high=0.6, max_resample=3)
    for process in run.cluster.processes.values():
        process.target.is_right = lambda a, candidate: candidate == 0 or int(a.task.id) % 4 == 0
    seen = []
    for _ in range(STEPS):
        kept, left_out, _ = run.step()
        assert len(kept) == BATCH
        seen += numbers_of([*kept, *left_out])
        assert len(run.state.outstanding) == sum(run.state.batches)
    assert len(seen) == len(set(seen))


def test_a_resumed_run_draws_no_more_than_what_is_left():
    run = Run(1)
    run.steps(3)  # the batch of the fourth is drawn
    again = Run.resumed(1, copy.deepcopy(run.state))
    again.steps(STEPS - 3)
    assert again.state.position == STEPS * BATCH and again.state.batches == []


@pytest.mark.parametrize(
    ("options", "filters"),
    [({}, False), ({"filter_low": 1e-6}, True), ({"filter_high": 0.9}, True),
     ({"max_resample": 1}, True)],
)  # fmt: skip
def test_what_makes_groups_be_left_out(options, filters):
    run = Run(1, **options)
    assert run.source_of(GroupSource, run.stream)._is_filtering is filters

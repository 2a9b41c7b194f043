"""The loop and the stream over stand-ins for actors and learners: who draws what, under which
version, and what happens when nothing can be learnt or nothing is finite."""

import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from fake_cluster import holder
from fakes import FakeGenerator, FakeLearner, FakeTasks, FakeView, task
from runs_compared import exact

from unslothrl.checkpoints.store import RunState
from unslothrl.cluster import LocalCluster
from unslothrl.config.options import Config
from unslothrl.config.parts import with_objective
from unslothrl.data.tasks import Data
from unslothrl.errors import HeadLost, ProcessLost, ResultLost, RunError
from unslothrl.records import Sampling
from unslothrl.tracking.rows import read_jsonl
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.training.rollouts import RolloutStream
from unslothrl.training.saving import MOST_WAITING, Boundary, Saving
from unslothrl.training.trainer import MOST_RECOVERIES, Trainer

SMALL = {
    "learner": "grpo", "batch_size": 6, "num_candidates": 4, "topk": 4, "learner_chunk_size": 1,
    "eval_every": 0, "save_every": 2, "checkpoint_every": 2, "max_new_tokens": 8,
}  # fmt: skip


def half(assignment, candidate: int) -> bool:
    return candidate % 2 == 0


class Run:
    """A trainer over two actors and learners that are not real."""

    def __init__(self, folder: Path, is_right=half, learners: int = 1, steps: int = 3, **options):
        self.config = with_objective(replace(Config(), **{**SMALL, **options}))
        self.actors = {f"actor-{i}": FakeGenerator(f"actor-{i}", is_right) for i in range(2)}
        self.learners = {f"learner-{i}": FakeLearner(f"learner-{i}", is_right)
                         for i in range(learners)}  # fmt: skip
        self.folder = RunFolder.create(folder, "x", "")
        self.view = FakeView()
        data = Data(FakeTasks(), {"held_out": [task("e0"), task("e1")]}, [])
        cluster = LocalCluster.of(self.actors, self.learners)
        self.trainer = Trainer(self.config, data, cluster, self.folder, self.view, steps)

    def metrics(self) -> list[dict]:
        return self.folder.read_metrics()

    def in_processes(self, patch) -> list[int]:
        """Lets learners be started again. -> the steps after which they are, filled later"""
        starts: list[int] = []
        trainer, cluster = self.trainer, self.trainer.cluster
        patch.setattr(cluster, "is_local", False)
        patch.setattr(cluster, "restart_learners", lambda: starts.append(trainer.state.step))
        for actor in self.actors.values():
            patch.setattr(actor, "abandon", lambda indices=None: None, raising=False)
        return starts


def fail(patch, owner, name: str, error: BaseException, is_due) -> None:
    """Has a method raise instead wherever it is due."""
    real = getattr(owner, name)

    def failing(*arguments, **keywords):
        if is_due():
            raise error
        return real(*arguments, **keywords)

    patch.setattr(owner, name, failing)


def test_a_run_from_the_first_version_to_the_last(tmp_path):
    run = Run(tmp_path)
    run.trainer.train()
    learner, actor = run.learners["learner-0"], run.actors["actor-0"]
    assert [row["policy_version"] for row in run.metrics()] == [1, 2, 3]
    assert learner.steps == 3 and [len(batch.samples) for batch in learner.batches] == [24] * 3
    assert actor.calls == ["load 0", "collect 3"] + [
        call for version in (1, 2) for call in (f"load {version}", "collect 3")
    ] + ["load 3"]
    assert learner.calls[:3] == ["publish 0", "load 0", "collect 1"]
    assert run.trainer.state.samples_seen == 72 and run.trainer.state.position == 18
    rows = read_jsonl(run.folder.step_file("rollouts", 2))
    assert [row["task"] for row in rows[::4]] == ["6", "7", "8", "9", "10", "11"]
    assert {row["policy_version"] for row in rows} == {1}
    saved = sorted(path.name for path in (run.folder.path / "adapters").iterdir())
    assert saved == ["v000002", "v000003"]


def test_rollouts_of_the_newest_steps_are_kept_as_far_as_a_resume_needs_them(tmp_path, monkeypatch):
    run = Run(tmp_path, steps=7, keep_rollouts=2, checkpoint_every=3)
    run.trainer.train()
    assert run.folder.steps_of("rollouts") == [6, 7]
    assert set(run.folder.steps_of("tokens")) <= {6, 7}
    cut_off = Run(tmp_path / "again", steps=7, keep_rollouts=2, checkpoint_every=3)
    fail(monkeypatch, cut_off.view, "step", KeyboardInterrupt(),
         lambda: cut_off.trainer.state.step == 6)  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        cut_off.trainer.train()
    cut_off.trainer.saving.wait()
    assert cut_off.folder.steps_of("rollouts") == [2, 3, 4, 5, 6]  # it goes on after step 3


def test_who_draws_what_is_a_function_of_the_run():
    actors = {f"actor-{i}": FakeGenerator(f"actor-{i}", half) for i in range(2)}
    learners = {"learner-0": FakeLearner("learner-0", half)}
    stream = RolloutStream(LocalCluster.of(actors, learners), learner_chunk=2)
    tasks = [task(str(i)) for i in range(7)]
    stream.policy_version = 5
    sent = stream.send(tasks, 2, Sampling(1.0, 1.0, 0, 4), (0, 1))
    where = {each.task.id: holder(stream, i) for i, each in stream.in_flight.items()}
    assert list(where.values()) == ["actor-0"] * 3 + ["actor-1"] * 2 + ["learner-0"] * 2
    assert {flight.policy_version for flight in stream.in_flight.values()} == {5}
    groups = stream.wait(sent)  # each hands over its last group first
    assert [group.task.id for group in groups] == [str(i) for i in range(7)]
    assert [group.completions[0].generator for group in groups] == list(where.values())
    assert stream.in_flight == {} == stream.finished
    stream.send(tasks[:1], 1, Sampling(1.0, 1.0, 0, 4), (0, 2))
    assert list(stream.in_flight) == [7]  # numbers are never used twice


FILTERED = {"learner": "dapo", "max_resample": 2, "overlong_cache": 0}


@pytest.mark.parametrize(
    ("options", "why", "resamples"),
    [({}, "", None), (FILTERED, ": every group was filtered out", 2)],
)
def test_nothing_to_learn_from_publishes_nothing(tmp_path, options, why, resamples):
    run = Run(tmp_path, lambda assignment, candidate: False, **options)
    run.trainer.train()
    learner = run.learners["learner-0"]
    assert learner.steps == 0 and learner.calls.count("make_room") == 3
    for row in run.metrics():
        assert (row["policy_version"], row["reward/mean"]) == (0, 0)
        assert row.get("rollout/resamples") == resamples and "train/loss" not in row
    assert f"step 1 has nothing to learn from and is skipped{why}" in run.view.notes[0]


def test_filtered_groups_are_replaced(tmp_path):
    def every_third(assignment, candidate):
        return int(assignment.task.id) % 3 == 0 and candidate < 2

    run = Run(tmp_path, every_third, learner="dapo", max_resample=9, steps=1, overlong_cache=0)
    run.trainer.train()
    (row,) = run.metrics()
    assert row["train/selected_completions"] == 24 and row["rollout/resamples"] > 0
    drawn = run.trainer.state.position
    assert row["samples_seen"] == 4 * drawn and drawn >= 16  # the sixth of every third task
    rows = read_jsonl(run.folder.step_file("rollouts", 1))
    assert len(rows) == 4 * drawn and len({each["task"] for each in rows}) == drawn
    assert {int(each["task"]) % 3 for each in rows if each["selected"]} == {0}
    assert 0 < row["reward/filtered_groups"] <= drawn - 6


def test_updates_that_are_not_finite_are_counted_and_end_the_run(tmp_path):
    run = Run(tmp_path, steps=9)
    run.learners["learner-0"].losses = [float("nan"), 0.5] + [float("nan")] * 3
    with pytest.raises(RunError, match=r"3 updates in a row .*bad_batch_000005.* --lr"):
        run.trainer.train()
    assert [row["train/skipped_updates"] for row in run.metrics()] == [1, 0, 1, 1]
    assert sum("nothing was changed" in note for note in run.view.notes) == 4
    (first, *_) = read_jsonl(run.folder.path / "bad_batch_000005.jsonl")
    assert {"prompt_ids", "completion_ids", "advantages"} <= first.keys()


def test_the_state_goes_on_where_it_was_saved(tmp_path):
    whole = Run(tmp_path / "whole", steps=4)
    whole.trainer.train()
    first = Run(tmp_path / "first", steps=2)
    first.trainer.train()
    second = Run(tmp_path / "second", steps=4)
    second.trainer.restore(first.folder.checkpoints.newest())
    second.trainer.train()
    assert second.learners["learner-0"].steps == 4
    rows = [[exact(row) for row in run.metrics()] for run in (whole, first, second)]
    assert rows[1] + rows[2] == rows[0]
    third = Run(tmp_path / "third", steps=2)
    third.trainer.restore(first.folder.checkpoints.newest())
    third.trainer.train()  # after the last step there is none
    assert third.trainer.state.step == 2 and third.metrics() == []
    assert third.trainer.newest_adapter().version == 2


def test_evaluations_are_kept_and_draw_the_same_every_time(tmp_path):
    seeds = []

    def watched(assignment, candidate):
        if assignment.task.id.startswith("e"):
            seeds.append((assignment.seed, assignment.task.id, candidate))
        return candidate == 0

    run = Run(tmp_path, watched, eval_every=2, eval_candidates=2, steps=2)
    run.trainer.train()
    first, last = run.trainer.state.evals
    assert (first["step"], last["step"]) == (0, 2)
    assert first["eval/held_out/pass@1"] == 0.5 and first["eval/held_out/best_of_n"] == 1.0
    assert seeds[:4] == seeds[4:] and seeds[0][0] == (0, "eval")


@pytest.mark.parametrize("last", ["e0", "6"])
def test_where_too_few_actors_are_left_the_last_whole_step_is_saved(tmp_path, last):
    """In the evaluation after the first step, or in the draw of the second."""

    def fails(assignment, candidate):
        if assignment.task.id == last and run.trainer.state.step == 1:
            run.trainer.stream.pool.failure = RunError("0 actors left")
        return candidate == 0

    run = Run(tmp_path, fails, eval_every=1, checkpoint_every=9)
    assert not run.trainer.save_boundary()  # of a run without a step
    with pytest.raises(RunError, match="0 actors left"):
        run.trainer.train()
    assert run.trainer.save_boundary()
    assert [row["step"] for row in run.metrics()] == [0, 1]
    resumed = Run(tmp_path / "resumed", fails, eval_every=1)
    resumed.trainer.restore(run.folder.checkpoints.newest())
    assert (resumed.trainer.state.step, resumed.trainer.state.position) == (1, 6)
    assert resumed.learners["learner-0"].steps == 1


@pytest.mark.parametrize("last", ["draw", "update"])
def test_a_run_whose_head_has_gone_saves_what_is_whole(tmp_path, monkeypatch, last):
    """In the draw of the second step, or in its update, when the learners are between two steps."""

    def fails(assignment, candidate):
        if last == "draw" and assignment.task.id == "6":
            raise HeadLost("no head")
        return candidate == 0

    run = Run(tmp_path, fails, checkpoint_every=9)
    learner = run.learners["learner-0"]
    fail(monkeypatch, learner, "update", HeadLost("no head"),
         lambda: last == "update" and learner.steps == 1)  # fmt: skip
    with pytest.raises(HeadLost):
        run.trainer.train()
    assert run.folder.checkpoints.steps() == []
    assert run.trainer.save_boundary()
    assert run.folder.checkpoints.newest().state.step == 1


def test_a_checkpoint_whose_state_does_not_arrive_is_named(tmp_path):
    lost = Mock(side_effect=ResultLost("a result was lost on its way (GetTimeoutError)"))
    run, notes = Run(tmp_path), []
    run.trainer.saving.note = notes.append
    run.trainer.saving.checkpoint(Boundary.of(RunState(step=4), lost))
    run.trainer.saving.wait()
    assert notes == ["step 4 has no checkpoint: a result was lost on its way (GetTimeoutError)"]
    assert run.folder.checkpoints.steps() == []


def test_lost_learners_go_on_from_the_last_whole_step_unless_that_is_in_vain(tmp_path, monkeypatch):
    run = Run(tmp_path, steps=4)
    trainer, starts = run.trainer, run.in_processes(monkeypatch)
    deaths = [2] + [4] * (MOST_RECOVERIES + 1)  # the steps whose updates fail

    def is_due():
        return deaths[:1] == [trainer.state.step + 1] and deaths.pop(0)

    fail(monkeypatch, trainer.updates, "run", ProcessLost("learner-0", "it died"), is_due)
    with pytest.raises(ProcessLost, match="it died"):
        trainer.train()
    assert starts == [1] + [3] * MOST_RECOVERIES and run.learners["learner-0"].steps == 3
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]


def test_learners_that_are_lost_before_any_step_is_whole_start_from_the_beginning(
    tmp_path, monkeypatch
):
    run = Run(tmp_path, steps=2)
    starts, lost = run.in_processes(monkeypatch), ProcessLost("learner-0", "it died")
    fail(monkeypatch, run.trainer, "publish", lost, lambda: not starts)
    run.trainer.train()
    assert len(starts) == 1 and run.trainer.boundary.state.step == 2
    assert [row["step"] for row in run.metrics()] == [1, 2]


def test_calls_run_in_order_while_the_caller_goes_on_and_after_an_error():
    saving, gate, done = Saving(None), threading.Event(), []
    saving.run(gate.wait, 60.0)
    saving.run(int, "x")
    for number in range(MOST_WAITING - 2):
        saving.run(done.append, number)
    assert done == []  # the first is still waiting, and this line was reached
    gate.set()
    with pytest.raises(ValueError, match="invalid literal"):
        saving.wait()
    saving.wait()
    assert done == list(range(MOST_WAITING - 2))

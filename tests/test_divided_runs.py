"""The main job over Ray with learners that share a base, and a stop while one waits for another."""

import shutil
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from runs_compared import differences, rows
from test_main_job import train

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from small_runs import Training
from wire import process_named

pytestmark = [pytest.mark.real, pytest.mark.slow]

JOB = {"engine": "transformers", "learner_chunk_size": 0, "lr": 5e-4}
MOST_EXIT_S = 5.0
MOST_IDLE = 0.3  # of a CPU, by one that waits


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Of two learners that each hold the base."""
    return train(tmp_path_factory.mktemp("runs"), "whole", **JOB, number_of_learners=2)


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """Two of three steps of two that share it."""
    room = tmp_path_factory.mktemp("runs")
    return train(room, "begun", **JOB, max_steps=2, learner_shards=2)


@pytest.mark.parametrize("shards", [1, 2, 3, 4])
def test_a_checkpoint_of_two_shards_goes_on_with_any_number(shards, begun, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    more = {"learner_shards": shards, "max_steps": 3}
    train(tmp_path, "run", "--resume", str(folder), **JOB, **more)
    if shards == 2:  # the bits of learners that hold all of it
        assert differences(folder, whole) == []
    drawn = [rows(run / "rollouts" / "step_000003.jsonl") for run in (folder, whole)]
    assert [row["completion"] for row in drawn[0]] == [row["completion"] for row in drawn[1]]
    ours, theirs = (rows(run / "metrics.jsonl")[-1] for run in (folder, whole))
    assert ours["step"] == theirs["step"] == 3
    for name in ("train/loss", "train/grad_norm"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-2, abs=1e-5), name


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def test_a_stop_while_a_learner_waits_in_a_gather_ends_within_seconds(tmp_path):
    flags = {"learner": "grpo", "engine": "transformers", "number_of_actors": 1}
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    words += ["--learner_shards", "2"]
    run = Training(tmp_path / "run", *words, phase=("updates", 3), is_new=True)
    try:
        run.wait_for(1)
        waiting, other = (process_named(f"learner-{i}", run.process.pid) for i in range(2))
        assert waiting is not None and other is not None
        run.at_phase()
        used, now = cpu_s(waiting), 0.0
        other.suspend()
        while now - used > MOST_IDLE or now == 0.0:  # it has begun, and waits
            used, until = now or used, time.monotonic() + 1
            while time.monotonic() < until:
                assert run.process.poll() is None, run.output
            now = cpu_s(waiting)
        sent = time.monotonic()
        run.send(signal.SIGTERM)
        code = run.process.wait(60)
        assert time.monotonic() - sent <= MOST_EXIT_S
        assert code == 128 + signal.SIGTERM
    finally:
        run.ends()
    assert rows(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == 2
    again = Training(tmp_path / "run")
    assert again.ends() == 0, again.output

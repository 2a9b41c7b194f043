"""A run on two hosts that share nothing but a cable gives what it gives on one, and goes on when
one of its actors is killed."""

import signal
from pathlib import Path

import pytest
from hosts import hosts_or_skip, start_ray
from run_on_hosts import RunOnHosts, write_problems

from unslothrl.commands import cli
from unslothrl.weights.adapter import WEIGHTS_FILE

pytestmark = [pytest.mark.real, pytest.mark.slow]

MEMORY_GB = (8, 2.5)  # so the learners are on the first host, and one actor on each
STEPS, BATCH, CANDIDATES, PASSES = 6, 4, 4, 2
TASKS = STEPS * BATCH // PASSES
KILLED_IN = 4  # the step whose actor is killed: those before are as on one machine
OPTIONS = {
    "model": "embedded",
    "system_prompt": "",
    "engine": "transformers",
    "backend": "peft",
    "max_steps": STEPS,
    "episodes": PASSES,
    "batch_size": BATCH,
    "num_candidates": CANDIDATES,
    "topk": CANDIDATES,
    "max_new_tokens": 32,
    "train_batch_size": 8,
    "lr": 5e-4,
    "number_of_actors": 2,
    "learner_chunk_size": 0,
    "eval_every": 0,
    "eval_dataset": "embedded",  # all problems of the file are trained on
    "save_every": 1,
}
START_S, STEP_S = 120.0, 60.0


@pytest.fixture(scope="module")
def cluster():
    with hosts_or_skip(2) as built:
        start_ray(built, MEMORY_GB)
        yield built


@pytest.fixture(scope="module")
def in_one_process(cluster, tmp_path_factory) -> Path:
    """The folder of the same run in this process, up to the step before the kill."""
    folder = tmp_path_factory.mktemp("runs")
    file = write_problems(cluster[0], TASKS)
    problems = folder / file.name  # a task is named after its file, and its seed after the task
    problems.write_bytes(cluster[0].path(file).read_bytes())
    options = OPTIONS | {
        "dataset": problems, "cluster": "local", "output_dir": folder, "run_name": "one",
    }  # fmt: skip
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    assert cli.main([*flags, "--max_steps", str(KILLED_IN - 1)]) == 0
    return folder / "one"


def test_two_hosts_give_what_one_gives_and_lose_nothing_to_a_kill(cluster, in_one_process):
    problems = write_problems(cluster[0], TASKS)
    run = RunOnHosts(cluster, "two", {**OPTIONS, "dataset": problems})
    try:
        run.wait_for_step(KILLED_IN - 1, START_S + STEPS * STEP_S)
        processes = run.processes()
        where = {name: host for name, (host, _) in processes.items()}
        assert where.keys() == {"learner-0", "actor-0", "actor-1"}
        assert where["actor-0"] is not where["actor-1"]
        (killed,) = {name for name, host in where.items() if host is cluster[1]} - {"learner-0"}
        processes[killed][1].send_signal(signal.SIGKILL)
        assert run.finish(START_S + STEPS * STEP_S) == 0, run.output
    finally:
        run.stop()
    (line,) = [line.text for line in run.lines if "started again" in line.text]
    assert killed in line
    assert [row["step"] for row in run.metrics()] == list(range(1, STEPS + 1))
    assert run.consumed(TASKS, PASSES, CANDIDATES) == []
    assert run.left_behind() == []
    for step in range(1, KILLED_IN):
        rollouts = f"rollouts/step_{step:06d}.jsonl"
        for file in (rollouts, f"adapters/v{step:06d}/{WEIGHTS_FILE}"):
            assert (run.folder / file).read_bytes() == (in_one_process / file).read_bytes(), file

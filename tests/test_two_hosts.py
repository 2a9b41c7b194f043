"""A run on two hosts that share nothing but a cable goes on when one of its actors is killed."""

import signal

import pytest
from hosts import hosts_or_skip, start_ray
from run_on_hosts import RunOnHosts, write_problems

pytestmark = pytest.mark.real

MEMORY_GB = (8, 2.5)  # so the learners are on the first host, and one actor on each
STEPS, BATCH, CANDIDATES, PASSES = 6, 4, 4, 2
TASKS = STEPS * BATCH // PASSES
KILLED_IN = 4  # the step whose actor is killed
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


def test_a_run_on_two_hosts_loses_nothing_to_a_killed_actor(cluster):
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

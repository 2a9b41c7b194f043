"""Learners that divide the work of one over hosts which share a cable alone; one host is lost."""

import pytest
from hosts import hosts_or_skip, start_ray
from run_on_hosts import RunOnHosts

pytestmark = [pytest.mark.real, pytest.mark.slow]

MEMORY_GB = (2.5, 2.5, 2.5)  # each holds one process
STEPS, LOST_AFTER = 4, 2
OPTIONS = {
    "model": "embedded",
    "learner": "grpo",
    "engine": "transformers",
    "max_steps": STEPS,
    "batch_size": 4,
    "num_candidates": 4,
    "topk": 4,
    "max_new_tokens": 32,
    "number_of_actors": 1,
    "eval_every": 0,
    "checkpoint_every": 1,
}
START_S, STEP_S = 240.0, 60.0


@pytest.fixture(scope="module")
def cluster():
    with hosts_or_skip(3) as built:
        start_ray(built, MEMORY_GB)
        yield built


@pytest.mark.parametrize("way", ["learner_shards", "pipeline_stages"])
def test_a_run_goes_on_when_the_host_of_a_learner_is_back(way, cluster):
    run = RunOnHosts(cluster, way, {**OPTIONS, way: 2})
    try:
        run.wait_for_step(LOST_AFTER, START_S + STEPS * STEP_S)
        where = {name: host for name, (host, _) in run.processes().items()}
        assert where.keys() == {"learner-0", "learner-1", "actor-0"}
        assert len(set(where.values())) == 3
        lost = next(host for name, host in where.items() if "learner" in name and host.index)
        lost.stop_ray()
        lost.start_ray(cluster[0], f"--memory={int(MEMORY_GB[lost.index] * 2**30)}")
        assert run.finish(START_S + STEPS * STEP_S) == 0, run.output
    finally:
        run.stop()
    assert [row["step"] for row in run.metrics()] == list(range(1, STEPS + 1))
    assert run.left_behind() == []

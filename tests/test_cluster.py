"""Ray with two real vLLM actors: every version reaches every actor, and speaks at once."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from test_engines import bias_towards

from unslothrl import cluster
from unslothrl.cluster import failures
from unslothrl.config.options import Config
from unslothrl.errors import RunError
from unslothrl.planning.machine import Machine
from unslothrl.planning.placement import ACTOR, ProcessPlan
from unslothrl.types import Sampling, Task

TOKEN = 77


@pytest.fixture(scope="module")
def ray_cluster(bases):
    config = replace(
        Config(),
        model=str(bases["biases"]),
        dataset="embedded",
        number_of_actors=2,
        engine="vllm",
        backend="peft",
        dtype="bfloat16",
        max_lora_rank=8,
        lora_alpha=16,
        max_new_tokens=16,
        max_prompt_tokens=16,
        kv_cache_mb=64,
    )
    started = cluster.start(config, bases["biases"], Machine.detect(), lambda stage: None)
    yield started
    started.close()


def spoken(workers, published, version) -> list[float]:
    """The share of TOKEN in what each actor says under a version."""
    workers.gather([actor.call("load", published) for actor in workers.actors])
    tasks = [Task(str(i), "", "", "", (5, 6, 7 + i)) for i in range(8)]
    sampling = Sampling(1.0, 1.0, 0, 16)
    calls = [
        actor.call("generate", tasks, 2, sampling, ("test", version)) for actor in workers.actors
    ]
    shares = []
    for rollout in workers.gather(calls):
        drawn = [one for group in rollout.groups for one in group.completions]
        assert {one.policy_version for one in drawn} == {version}
        ids = [token for one in drawn for token in one.token_ids]
        shares.append(ids.count(TOKEN) / len(ids))
    return shares


def test_a_biased_version_speaks_on_every_actor_at_the_next_rollout(
    ray_cluster, bases, make_backend
):
    published = ray_cluster.learners[0].call("publish", 1)
    assert max(spoken(ray_cluster, published, 1)) < 0.05
    biased = bias_towards(TOKEN, make_backend(bases["biases"], trained=False)).publish(2)
    assert min(spoken(ray_cluster, biased, 2)) > 0.9
    published = ray_cluster.learners[0].call("publish", 3)
    assert max(spoken(ray_cluster, published, 3)) < 0.05


def test_everyone_holds_the_same_base(ray_cluster):
    everyone = [*ray_cluster.actors, *ray_cluster.learners]
    hashes = set(ray_cluster.gather([worker.call("fingerprint") for worker in everyone]))
    assert len(hashes) == 1 and hashes != {""}


def test_every_process_has_the_same_threads(ray_cluster):
    assert os.environ["OMP_NUM_THREADS"]
    plan = ProcessPlan(ACTOR, 0)
    environment = cluster.worker_environment(Machine.detect(), Path("/tmp/x"), plan)
    assert environment["OMP_NUM_THREADS"] == os.environ["OMP_NUM_THREADS"]


def test_progress_is_told_while_calls_run(ray_cluster):
    tasks = [Task(str(i), "", "", "", (5, 6, 7 + i)) for i in range(16)]
    call = ray_cluster.actors[0].call("generate", tasks, 8, Sampling(1.0, 1.0, 0, 16), (1,))
    seen = []
    ray_cluster.gather([call], lambda done, tokens: seen.append((done, tokens)))
    assert all(0 <= done <= 128 for done, _ in seen)


def test_the_object_store_fits_small_hosts():
    gigabyte = 2**30
    assert cluster.object_store(Machine(ram_mb=12 * 1024, shm_mb=64)) == (
        1228 * 2**20,
        "/tmp",
    )  # a tenth of 12 GB, on disk
    assert cluster.object_store(Machine(ram_mb=24 * 1024, shm_mb=12 * 1024))[1] is None
    assert cluster.object_store(Machine(ram_mb=512 * 1024, shm_mb=256 * 1024))[0] == 4 * gigabyte
    assert cluster.object_store(Machine(ram_mb=600, shm_mb=64))[0] == 128 * 2**20


def test_what_a_worker_raises_arrives_as_it_is(ray_cluster):
    with pytest.raises(AttributeError, match="no attribute 'nothing'") as error:
        ray_cluster.gather([ray_cluster.actors[0].call("nothing")])
    assert "in call" in str(error.value.__cause__)  # the worker's own traceback
    assert failures.summary_of(error.value).endswith("(cluster.py, line " + host_line() + ")")


def host_line() -> str:
    """The line in which a worker's process calls its method."""
    lines = Path(cluster.__file__).read_text().splitlines()
    (line,) = [
        n for n, text in enumerate(lines, 1) if "return getattr(self.worker, method)" in text
    ]
    return str(line)


def test_a_worker_that_dies_is_named(ray_cluster, capfd):
    """The last test here: it ends an actor."""
    worker = ray_cluster.actors[1]
    pid = ray_cluster.ray.get(worker.handle.pid.remote())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RunError) as error:
        ray_cluster.gather([worker.call("fingerprint")])
    said = str(error.value)
    assert said.startswith(f"actor-1 (process {pid}) died: ") and "\n" not in said
    assert "memory" in said and Path(said.rpartition("its log is ")[2]).is_file()
    assert capfd.readouterr() == ("", "")

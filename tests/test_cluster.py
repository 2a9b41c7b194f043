"""Ray with two real vLLM actors: every version reaches every actor, and is drawn from at once."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_engines import bias_towards

from unslothrl import cluster
from unslothrl.cluster import causes
from unslothrl.cluster import ray_calls as ray_module
from unslothrl.cluster import ray_cluster as ray_cluster_module
from unslothrl.cluster.base import everyone, loaded
from unslothrl.cluster.joining import object_store
from unslothrl.cluster.nodes import process_environment
from unslothrl.cluster.ray_cluster import RayCluster
from unslothrl.config.options import Config
from unslothrl.errors import ProcessLost, RunError
from unslothrl.planning.placement import ACTOR, LEARNER, ProcessPlan
from unslothrl.records import Assignment, Sampling, Task
from unslothrl.system.machine import Machine
from unslothrl.weights import node_files

pytestmark = pytest.mark.real

TOKEN = 77


@pytest.fixture(scope="module")
def ray_cluster(bases):
    config = replace(
        Config(),
        model=str(bases["biases"]),
        dataset="embedded",
        number_of_actors=2,
        engine="transformers",
        backend="peft",
        dtype="bfloat16",
        max_lora_rank=8,
        lora_alpha=16,
        max_new_tokens=16,
        max_prompt_tokens=16,
    )
    started = cluster.start(config, bases["biases"], Machine.detect(), lambda stage: None)
    yield started
    started.close()


def assignments(groups: int, candidates: int, *seed: int | str) -> list[Assignment]:
    sampling = Sampling(1.0, 1.0, 0, 16)
    tasks = [Task(str(i), "", "", "", (5, 6, 7 + i)) for i in range(groups)]
    return [Assignment(i, task, candidates, sampling, seed) for i, task in enumerate(tasks)]


def shares_of_token(processes, published, version) -> list[float]:
    """The share of TOKEN in what each actor draws under a version."""
    processes.gather([actor.load(published) for actor in processes.actors])
    drawn = assignments(8, 2, "test", version)
    shares = []
    calls = [actor.collect(assignments=drawn) for actor in processes.actors]
    for collected in processes.gather(calls):
        completions = [one for _, group in collected.groups for one in group.completions]
        assert {one.policy_version for one in completions} == {version}
        ids = [token for one in completions for token in one.token_ids]
        shares.append(ids.count(TOKEN) / len(ids))
    return shares


def test_a_biased_version_is_drawn_from_on_every_actor_at_the_next_rollout(
    ray_cluster, bases, make_backend
):
    published = ray_cluster.learners[0].publish(1)
    assert max(shares_of_token(ray_cluster, published, 1)) < 0.05
    biased = bias_towards(TOKEN, make_backend(bases["biases"], trained=False)).publish(2)
    assert min(shares_of_token(ray_cluster, biased, 2)) > 0.9
    published = ray_cluster.learners[0].publish(3)
    assert max(shares_of_token(ray_cluster, published, 3)) < 0.05


def test_everyone_holds_the_same_base(ray_cluster):
    hashes = set(ray_cluster.gather([each.fingerprint() for each in everyone(ray_cluster)]))
    assert len(hashes) == 1 and hashes != {""}


def test_every_process_has_the_same_threads(ray_cluster):
    assert os.environ["OMP_NUM_THREADS"]
    plan = ProcessPlan(ACTOR, 0)
    environment = process_environment(Machine.detect(), Path("/tmp/x"), plan)
    assert environment["OMP_NUM_THREADS"] == os.environ["OMP_NUM_THREADS"]


def test_a_learner_that_hangs_while_a_version_is_waited_for_is_named(ray_cluster, monkeypatch):
    learner = ray_cluster.learners[0]
    pid = ray_cluster.ray.get(learner.transport.host.pid.remote())
    monkeypatch.setattr(ray_module, "PING_S", 0.5)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ProcessLost, match="learner-0 does not answer"):
            ray_cluster.wait([learner.fingerprint()])
    finally:
        os.kill(pid, signal.SIGCONT)


def test_the_folder_of_a_run_stays_as_long_as_its_driver_lives(ray_cluster):
    another, scratch = (
        ray_cluster.scratch.with_name(f"{node_files.ROOM}another"),
        ray_cluster.scratch,
    )
    node_files.remove_abandoned(another)
    assert scratch.is_dir()
    killed = node_files.NodeFiles(scratch.with_name(f"{node_files.ROOM}killed"))
    os.close(killed.in_use)  # as the kernel does
    node_files.remove_abandoned(another)
    assert scratch.is_dir() and not killed.room.exists()


def test_a_process_that_hangs_while_it_starts_is_named(monkeypatch):
    """Once it is known how long that takes."""
    monkeypatch.setattr(ray_cluster_module, "START_LEAST_S", 0.3)
    cluster = RayCluster.__new__(RayCluster)
    cluster.hosts = {"learner-0": SimpleNamespace(ready=SimpleNamespace(remote=object))}
    cluster.plans = {"learner-0": ProcessPlan(LEARNER, 0)}
    cluster.fetched, said = {}, []
    cluster.stage = said.append
    cluster.poll = lambda calls, timeout_s: []
    cluster._end = cluster._place = cluster._launch = lambda *_: None
    cluster.start_s = {}
    assert cluster.start_allowed_s(LEARNER) == ray_cluster_module.START_S
    cluster.start_s = {LEARNER: 0.04}
    assert cluster.start_allowed_s() == ray_cluster_module.START_S  # an actor's takes longer
    with pytest.raises(ProcessLost, match="learner-0 has not started for 0 s: it hangs") as lost:
        cluster._wait_ready(["learner-0"])
    assert lost.value.name == "learner-0"
    assert said == ["learner-0 has not started for 0 s: it hangs: started again"] * 2


def test_progress_is_reported_while_calls_run(ray_cluster):
    actor = ray_cluster.actors[0]
    seen = []
    call = actor.collect(assignments=assignments(16, 8, 1))
    ray_cluster.gather([call], lambda done, tokens: seen.append((done, tokens)))
    assert all(0 <= done <= 128 for done, _ in seen)


def test_the_object_store_fits_small_hosts():
    gigabyte = 2**30
    assert object_store(Machine(ram_mb=12 * 1024, shm_mb=64)) == (
        1228 * 2**20,
        "/tmp",
    )  # a tenth of 12 GB, on disk
    assert object_store(Machine(ram_mb=24 * 1024, shm_mb=12 * 1024))[1] is None
    assert object_store(Machine(ram_mb=512 * 1024, shm_mb=256 * 1024))[0] == 4 * gigabyte
    assert object_store(Machine(ram_mb=600, shm_mb=64))[0] == 128 * 2**20


def test_what_a_process_raises_arrives_as_it_is(ray_cluster):
    with pytest.raises(AttributeError, match="no attribute 'nothing'") as error:
        ray_cluster.gather([ray_cluster.actors[0].transport.call("nothing")])
    assert "in call" in str(error.value.__cause__)  # the traceback there
    assert causes.summary_of(error.value).endswith("(ray_calls.py, line " + host_line() + ")")


def host_line() -> str:
    """The line in which a process calls its actor's method."""
    lines = Path(ray_module.__file__).read_text().splitlines()
    (line,) = [
        n for n, text in enumerate(lines, 1) if "return getattr(self.target, method)" in text
    ]
    return str(line)


def test_a_process_that_dies_is_named(ray_cluster, capfd):
    """The last test here: it ends an actor."""
    actor = ray_cluster.actors[1]
    pid = ray_cluster.ray.get(actor.transport.host.pid.remote())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RunError) as error:
        ray_cluster.gather([actor.fingerprint()])
    said = str(error.value)
    assert said.startswith(f"actor-1 (process {pid}) died: ") and "\n" not in said
    assert "memory" in said and Path(said.rpartition("its log is ")[2]).is_file()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("learners", "actors", "said"),
    [(1, 2, "1 learner and 2 actors"), (0, 1, "1 actor"), (1, 0, "1 learner")],
)
def test_only_what_there_is_is_said_to_be_loaded(learners, actors, said):
    assert loaded(Config(number_of_learners=learners, number_of_actors=actors)) == said

"""Ray with two actors: every version reaches every actor, and is drawn from at once; processes that
hang or die are named."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import fake_processes
import pytest
from fakes import task

from unslothrl import cluster, embedded
from unslothrl.cluster import causes
from unslothrl.cluster import ray_calls as ray_module
from unslothrl.cluster import ray_cluster as ray_cluster_module
from unslothrl.cluster.joining import object_store_bytes
from unslothrl.cluster.ray_cluster import RayCluster
from unslothrl.errors import ProcessLost, RunError
from unslothrl.planning.placement import LEARNER, ProcessPlan
from unslothrl.records import Assignment, Sampling
from unslothrl.system.machine import Machine
from unslothrl.weights.adapter import Adapter

pytestmark = pytest.mark.real

TOKEN = 77


@pytest.fixture(scope="module")
def ray_cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", fake_processes.PATH)
        started = cluster.start(
            fake_processes.config_of({"number_of_actors": 2}), embedded.BASE, Machine.detect(),
            lambda stage: None, fake_processes.BUILDERS,
        )  # fmt: skip
        yield started
        started.close()


def shares_of_token(processes, published, version) -> list[float]:
    """The share of TOKEN in what each actor draws under a version."""
    processes.gather([actor.load(published) for actor in processes.actors])
    drawn = [
        Assignment(i, task(str(i)), 2, Sampling(1.0, 1.0, 0, 16), ("test", version))
        for i in range(8)
    ]
    shares = []
    calls = [actor.collect(assignments=drawn) for actor in processes.actors]
    for groups, _ in processes.gather(calls):
        completions = [one for _, group in groups for one in group.completions]
        assert {one.policy_version for one in completions} == {version}
        ids = [token for one in completions for token in one.token_ids]
        shares.append(ids.count(TOKEN) / len(ids))
    return shares


def test_a_biased_version_is_drawn_from_on_every_actor_at_the_next_rollout(ray_cluster):
    """A version whose weights are the number of a token draws that one alone."""
    published = ray_cluster.learners[0].publish(1)
    assert max(shares_of_token(ray_cluster, published, 1)) < 0.05
    assert shares_of_token(ray_cluster, Adapter.of(2, b"%d" % TOKEN, "{}"), 2) == [1, 1]
    published = ray_cluster.learners[0].publish(3)
    assert max(shares_of_token(ray_cluster, published, 3)) < 0.05


@pytest.mark.slow
def test_a_learner_that_hangs_while_a_version_is_waited_for_is_named(ray_cluster, monkeypatch):
    learner = ray_cluster.learners[0]
    pid = ray_cluster.ray.get(learner.transport.host.pid.remote())
    monkeypatch.setattr(ray_module, "PING_S", 0.5)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ProcessLost, match="learner-0 does not answer"):
            ray_cluster.wait([learner.check(None)])
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_process_that_hangs_while_it_starts_is_named(monkeypatch):
    """Once it is known how long that takes."""
    monkeypatch.setattr(ray_cluster_module, "START_LEAST_S", 0.3)
    cluster = RayCluster.__new__(RayCluster)
    cluster.hosts = {"learner-0": SimpleNamespace(ready=SimpleNamespace(remote=object))}
    cluster.plans = {"learner-0": ProcessPlan(LEARNER, 0)}
    said = []
    cluster.stage = said.append
    cluster.poll = lambda calls, timeout_s: []
    cluster._end = cluster._place = cluster._launch = lambda *_: None
    cluster.start_s = {LEARNER: 0.04}
    assert cluster.start_allowed_s() == ray_cluster_module.START_S  # an actor's takes longer
    with pytest.raises(ProcessLost, match="learner-0 has not started for 0 s") as lost:
        cluster._wait_ready(["learner-0"])
    assert lost.value.name == "learner-0" and len(said) == 2  # it was started again


def test_the_object_store_fits_small_hosts():
    assert object_store_bytes(Machine(ram_mb=12 * 1024)) == 1228 * 2**20  # a tenth
    assert object_store_bytes(Machine(ram_mb=512 * 1024)) == 4 * 2**30
    assert object_store_bytes(Machine(ram_mb=600)) == 128 * 2**20


def test_what_a_process_raises_arrives_as_it_is(ray_cluster):
    with pytest.raises(AttributeError, match="no attribute 'nothing'") as error:
        ray_cluster.gather([ray_cluster.actors[0].transport.call("nothing")])
    assert "in call" in error.value.__notes__[0]  # the traceback there
    assert "(ray_calls.py, line " in causes.summary_of(error.value)


def test_a_process_that_dies_is_named(ray_cluster, capfd):
    """The last test here: it ends an actor."""
    actor = ray_cluster.actors[1]
    pid = ray_cluster.ray.get(actor.transport.host.pid.remote())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RunError) as error:
        ray_cluster.gather([actor.check(None)])
    said = str(error.value)
    assert said.startswith(f"actor-1 (process {pid}) died: ") and "\n" not in said
    assert "memory" in said and Path(said.rpartition("its log is ")[2]).is_file()
    assert capfd.readouterr() == ("", "")

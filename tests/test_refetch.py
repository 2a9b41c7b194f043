"""Versions that arrive damaged: published once more, or read from files of one's own."""

import dataclasses

import pytest
from fake_cluster import FakeCluster, FakeProcess, Published
from fakes import FakeLearner
from test_pool import names_of, send
from test_trainer import Run

from unslothrl.cluster.base import Checks
from unslothrl.cluster.handles import LearnerHandle
from unslothrl.cluster.local import LocalCall
from unslothrl.errors import AdapterDamaged
from unslothrl.training.pool import MOST_DAMAGED
from unslothrl.training.rollouts import RolloutStream
from unslothrl.weights.adapter import Adapter

GOOD = Adapter.of(3, b"weights", "{}")
DAMAGED = dataclasses.replace(GOOD, weights=memoryview(b"weighty"))


class Ready(LocalCall):
    """A call that has ended with this."""

    def __init__(self, value: Adapter):
        super().__init__(None, "", ())
        self.value, self.is_done = value, True


class Again(FakeLearner):
    """A learner that has published `GOOD`; `sends` is what arrives of it."""

    def __init__(self, sends: Adapter = GOOD):
        super().__init__("learner-0", lambda assignment, candidate: True)
        self.sends = sends

    def publish_again(self) -> Published:
        self.calls.append("publish again")
        return Published(self.sends)


class Process(FakeProcess):
    """What its learner publishes is there at once."""

    def call(self, method: str, *arguments):
        if method == "publish_again":
            return self.target.publish_again()
        return super().call(method, *arguments)


def cluster_of(learner: Again) -> FakeCluster:
    cluster = FakeCluster(2)
    cluster.processes["learner-0"] = Process("learner-0", learner)
    cluster.learners = (LearnerHandle("learner-0", cluster.processes["learner-0"]),)
    return cluster


def stream_of(cluster: FakeCluster, notes: list[str], overlaps: bool = True) -> RolloutStream:
    checks = Checks(None, "base")
    return RolloutStream(cluster, 0, note=notes.append, checks=checks, overlaps=overlaps)


def versions(cluster: FakeCluster) -> set[int]:
    """That the actors hold."""
    return {cluster.processes[actor.name].target.version for actor in cluster.actors}


def published(learner: Again) -> int:
    """How often."""
    return learner.calls.count("publish again")


@pytest.mark.parametrize("overlaps", [False, True])
def test_what_is_damaged_on_its_way_is_published_once_more_for_all(overlaps):
    notes: list[str] = []
    learner = Again()
    cluster = cluster_of(learner)
    stream = stream_of(cluster, notes, overlaps)
    stream.publish(Published(DAMAGED), 3)
    groups = stream.wait(send(stream, 6))
    assert names_of(groups) == [str(i) for i in range(6)] and cluster.started == []
    assert versions(cluster) == {3}
    assert {group.policy_version for group in groups} == {3} or overlaps
    assert published(learner) == 1
    (note,) = notes
    assert "actor-0: adapter v3 arrived damaged" in note and note.endswith("it is fetched again")


def test_who_gets_it_damaged_again_and_again_is_given_up():
    notes: list[str] = []
    learner = Again(DAMAGED)
    cluster = cluster_of(learner)
    stream = stream_of(cluster, notes)
    stream.publish(Published(DAMAGED), 3)
    for _ in range(1000):
        if cluster.started:
            break
        stream.pump()
    assert MOST_DAMAGED <= published(learner) <= 2 * MOST_DAMAGED  # of two actors
    said = "\n".join(notes)
    assert f"as {MOST_DAMAGED} before it: started again" in said


def test_a_version_that_is_superseded_is_not_asked_for():
    learner = Again()
    cluster = cluster_of(learner)
    stream = stream_of(cluster, [])
    stream.publish(Published(DAMAGED), 3)
    stream.publish(Published(Adapter.of(4, b"newer", "{}")), 4)
    stream.wait(send(stream, 2))
    assert published(learner) == 0
    assert versions(cluster) == {4}


def test_a_damaged_version_is_not_what_is_saved(tmp_path):
    run = Run(tmp_path, steps=2)
    run.trainer.train()
    whole = run.trainer.newest_adapter()
    damaged = dataclasses.replace(whole, weights=memoryview(b"!" * len(whole.weights)))
    run.trainer.published = Ready(damaged)
    assert run.trainer.newest_adapter() is whole
    run.learners["learner-0"].published = damaged
    run.trainer.published = Ready(damaged)
    with pytest.raises(AdapterDamaged, match="v2 arrived damaged"):
        run.trainer.newest_adapter()

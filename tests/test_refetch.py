"""Versions that arrive damaged: published once more, or read from files of one's own."""

import dataclasses

import pytest
from fake_cluster import FakeCluster, FakeProcess, Published
from fakes import FakeLearner
from test_actor_pool import names_of, send
from test_trainer import Run

from unslothrl.cluster import LocalCall
from unslothrl.cluster.handles import Checks, LearnerHandle
from unslothrl.errors import AdapterDamaged
from unslothrl.training.actor_pool import MOST_DAMAGED
from unslothrl.training.rollouts import RolloutStream
from unslothrl.weights.adapter import Adapter

GOOD = Adapter.of(3, b"weights", "{}")
DAMAGED = dataclasses.replace(GOOD, weights=memoryview(b"weighty"))


class Ready(LocalCall):
    """A call that has ended with this."""

    def __init__(self, value: Adapter):
        super().__init__(None, "", ())
        self.value = self.result = value


class Learner(FakeProcess):
    """Has published `GOOD`; `sends` is what arrives of it, at once."""

    def __init__(self, sends: Adapter):
        super().__init__("learner-0", FakeLearner("learner-0", lambda assignment, candidate: True))
        self.sends, self.published_again = sends, 0

    def call(self, method: str, *arguments):
        if method != "publish_again":
            return super().call(method, *arguments)
        self.published_again += 1
        return Published(self.sends)


class Stream(RolloutStream):
    """Of two actors and a learner, whose version 3 has arrived damaged."""

    def __init__(self, sends: Adapter = GOOD, overlaps: bool = True):
        self.notes: list[str] = []
        self.learner, cluster, checks = Learner(sends), FakeCluster(2), Checks(None, "base")
        cluster.processes["learner-0"] = self.learner
        cluster.learners = (LearnerHandle("learner-0", self.learner),)
        super().__init__(cluster, 0, note=self.notes.append, checks=checks, overlaps=overlaps)
        self.publish(Published(DAMAGED), 3)

    @property
    def versions(self) -> set[int]:
        """That the actors hold."""
        return {self.cluster.processes[each.name].target.version for each in self.cluster.actors}


@pytest.mark.parametrize("overlaps", [False, True])
def test_what_is_damaged_on_its_way_is_published_once_more_for_all(overlaps):
    stream = Stream(overlaps=overlaps)
    groups = stream.wait(send(stream, 6))
    assert names_of(groups) == [str(i) for i in range(6)] and stream.cluster.started == []
    assert {group.policy_version for group in groups} == {3} or overlaps
    assert (stream.versions, stream.learner.published_again) == ({3}, 1)
    (note,) = stream.notes
    assert "actor-0: adapter v3 arrived damaged" in note and note.endswith("it is fetched again")


def test_who_gets_it_damaged_again_and_again_is_given_up():
    stream = Stream(DAMAGED)
    for _ in range(1000):
        if stream.cluster.started:
            break
        stream.pump()
    assert MOST_DAMAGED <= stream.learner.published_again <= 2 * MOST_DAMAGED  # of two actors
    assert f"as {MOST_DAMAGED} before it: started again" in "\n".join(stream.notes)


def test_a_version_that_is_superseded_is_not_asked_for():
    stream = Stream()
    stream.publish(Published(Adapter.of(4, b"newer", "{}")), 4)
    stream.wait(send(stream, 2))
    assert (stream.versions, stream.learner.published_again) == ({4}, 0)


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

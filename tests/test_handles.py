"""Handles have the methods of what they stand for, every call crosses the process border, and what
every process of a run must show before it works."""

import inspect
from types import SimpleNamespace

import pytest
from fakes import FakeGenerator, FakeLearner

from unslothrl.actors.actor import Actor
from unslothrl.cluster import LocalCluster
from unslothrl.cluster.handles import MOST_STARTS, ActorHandle, Checks, LearnerHandle
from unslothrl.errors import ProcessLost, RunError, UserError
from unslothrl.learners.learner import Learner


def parameters(function) -> list[tuple[str, object]]:
    """(name, default) of every parameter."""
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("handle", [ActorHandle, LearnerHandle])
def test_a_handle_passes_what_the_method_takes(handle):
    """But for parameters that have a default there, which tests use."""
    targets = [Learner] if handle is LearnerHandle else [Actor, Learner]
    for name in (name for name in dir(handle) if not name.startswith("_")):
        for target in targets:
            passed, taken = parameters(getattr(handle, name)), parameters(getattr(target, name))
            assert passed == taken[: len(passed)], name
            assert inspect.Parameter.empty not in dict(taken[len(passed) :]).values()


def test_a_call_may_be_an_argument_and_runs_once():
    actor = SimpleNamespace(load=lambda adapter, fetch_s: f"loaded {adapter}")
    learner = SimpleNamespace(publish=lambda version: f"v{version}")
    cluster = LocalCluster.of({"actor-0": actor}, {"learner-0": learner})
    published = cluster.learners[0].publish(3)
    assert cluster.gather([cluster.actors[0].load(published)]) == ["loaded v3"]
    assert cluster.gather([published, published]) == ["v3", "v3"]


def started() -> tuple[LocalCluster, list[FakeGenerator]]:
    """-> (two actors and a learner, what they stand for)"""
    actors = {name: FakeGenerator(name, lambda *_: True) for name in ("actor-0", "actor-1")}
    learner = FakeLearner("learner-0", lambda *_: True)
    return LocalCluster.of(actors, {"learner-0": learner}), [*actors.values(), learner]


def test_who_has_a_canary():
    for learners_generate, expected in ((False, [1, 1, 0]), (True, [1, 1, 1])):
        checks = Checks(learners_generate=learners_generate)
        processes, everyone = started()
        checks.check_all(processes)
        assert [each.calls.count("canary") for each in everyone] == [0, 0, 0]
        (checks.shape,) = processes.gather([processes.learners[0].adapter_shape()])
        checks.check_all(processes)
        assert [each.calls.count("canary") for each in everyone] == expected
        checks.check_all(processes, processes.actors[1:])  # that was started again
        assert everyone[1].calls.count("canary") == 2


def test_another_base_and_another_sandbox_are_named():
    checks = Checks("bubblewrap")
    assert checks.problem("learner-0", ("", "a" * 8, 8)) is None
    base = checks.problem("actor-1", ("", "b" * 8, 8))
    assert isinstance(base, RunError)
    assert str(base).startswith("actor-1 holds a different 4-bit base (bbbbbbbb)")
    sandbox = checks.problem("actor-2", ("no bubblewrap here", "a" * 8, None))
    assert isinstance(sandbox, UserError) and str(sandbox) == "actor-2: no bubblewrap here"


class Dying:
    """A cluster in which the named process dies at each of its first calls."""

    def __init__(self, name: str, deaths: int):
        self.inner, _ = started()
        self.actors, self.learners = self.inner.actors, self.inner.learners
        self.name, self.deaths, self.started = name, deaths, []

    def gather(self, calls):
        names = {call.target.name for call in calls}
        if self.name in names and len(self.started) < self.deaths:
            raise ProcessLost(self.name, f"{self.name} died")
        return self.inner.gather(calls)

    def start_again(self, name: str) -> None:
        self.started.append(name)


@pytest.mark.parametrize("name", ["actor-1", "learner-0"])
def test_one_that_dies_while_it_is_checked_is_started_again(name):
    notes: list[str] = []
    cluster = Dying(name, MOST_STARTS - 1)
    Checks().check_started(cluster, notes.append)
    assert cluster.started == [name] * 2 and notes == [f"{name} died: started again"] * 2
    with pytest.raises(ProcessLost, match=f"{name} died"):
        Checks().check_started(Dying(name, MOST_STARTS), notes.append)

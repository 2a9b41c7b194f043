"""Handles have the methods of what they stand for, and every call crosses the process border."""

import inspect
import typing

import pytest

from unslothrl.actors.actor import Actor
from unslothrl.cluster.handles import ActorHandle, GeneratorHandle, LearnerHandle
from unslothrl.cluster.local import LocalCluster


def methods(handle: type) -> list[str]:
    return [name for name in dir(handle) if not name.startswith("_")]


def parameters(function) -> list[tuple[str, object]]:
    """(name, default) of every parameter."""
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("handle", [GeneratorHandle, ActorHandle, LearnerHandle])
def test_a_handle_passes_what_the_method_takes(handle):
    """But for parameters that have a default there, which tests use."""
    from unslothrl.learners.learner import Learner

    targets = [Learner] if handle is LearnerHandle else [Actor, Learner]
    for name in methods(handle):
        for target in targets:
            passed, taken = parameters(getattr(handle, name)), parameters(getattr(target, name))
            assert passed == taken[: len(passed)], name
            assert all(
                default is not inspect.Parameter.empty for _, default in taken[len(passed) :]
            )


@pytest.mark.parametrize("handle", [ActorHandle, LearnerHandle])
def test_a_call_has_the_type_of_the_methods_result(handle):
    from unslothrl.learners.learner import Learner

    target = Learner if handle is LearnerHandle else Actor
    for name in methods(handle):
        returns = inspect.signature(getattr(target, name), eval_str=True).return_annotation
        (result,) = typing.get_args(
            inspect.signature(getattr(handle, name), eval_str=True).return_annotation
        )
        assert result == (type(None) if returns is None else returns), name


class Echo:
    def load(self, adapter, fetch_s):
        return f"loaded {adapter}"

    def publish(self, version):
        return f"v{version}"


def test_a_call_may_be_an_argument_and_runs_once():
    cluster = LocalCluster.of({"actor-0": Echo()}, {"learner-0": Echo()})
    published = cluster.learners[0].publish(3)
    assert cluster.gather([cluster.actors[0].load(published)]) == ["loaded v3"]
    assert cluster.gather([published, published]) == ["v3", "v3"]

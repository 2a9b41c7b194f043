"""The processes of a run: under Ray, or all in this process, one call after the other, for
debugging and for machines without Ray. Both run the same classes on the same arguments.
"""

import contextlib
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unslothrl.cluster.handles import (
    ActorHandle,
    Builders,
    Call,
    Cluster,
    LearnerHandle,
    Progress,
    Stage,
)
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.planning.place import place
from unslothrl.planning.placement import ACTOR, LEARNER, Resources
from unslothrl.system.machine import Machine
from unslothrl.weights import base_model


def start(
    config: Config, base: Path, machine: Machine, stage: Stage, builders: Builders | None = None
) -> Cluster:
    """The cluster that `config` asks for, its workers loaded. Raises UserError if it cannot fit.

    `builders` build other workers than a run's, to measure or to test with.
    """
    from unslothrl.cluster.build import build_actor, build_learner

    builders = builders or {ACTOR: build_actor, LEARNER: build_learner}
    if config.cluster != "local":
        from unslothrl.cluster.ray_cluster import RayCluster

        return RayCluster(config, base, machine, stage, builders)
    if config.engine == "vllm" and config.number_of_actors > 1:
        raise UserError(
            f"number_of_actors {config.number_of_actors}: one process holds one vLLM: set "
            "--number_of_actors 1 with --cluster local, or --cluster ray"
        )
    placement = place(
        config, Resources.of_machine(config, machine), base_mb=base_model.size_mb(base)
    )
    built: dict[str, dict[str, Any]] = {ACTOR: {}, LEARNER: {}}
    with contextlib.ExitStack() as on_error:
        on_error.callback(lambda: LocalCluster.of(built[ACTOR], built[LEARNER]).close())
        for plan in placement.processes:
            stage(f"loading {plan.kind} {plan.index}")
            built[plan.kind][plan.name] = builders[plan.kind](config, base, plan)
        on_error.pop_all()
    return LocalCluster.of(built[ACTOR], built[LEARNER])


def import_first(config: Config) -> None:
    """Imports what must be first in this process, where it will hold the learner itself.

    Raises UserError where the learner's process, on this machine, could not import it.
    """
    here = config.cluster == "local" or config.ray_address is None
    if config.backend == "unsloth" and here and importlib.util.find_spec("unsloth") is None:
        raise UserError("backend unsloth is not installed on this machine: set --backend peft")
    if config.cluster == "local" and config.backend == "unsloth":
        from unslothrl.cluster.build import import_unsloth

        import_unsloth(config)


class LocalCall(Call[Any]):
    """A call that runs when its result is first asked for."""

    def __init__(self, target: Any, method: str, arguments: tuple):
        self.target, self.method, self.arguments = target, method, arguments

    @functools.cached_property
    def result(self) -> Any:
        arguments = [a.result if isinstance(a, LocalCall) else a for a in self.arguments]
        return getattr(self.target, self.method)(*arguments)


class LocalTransport:
    """The way to an actor or a learner of this process."""

    def __init__(self, target: Any):
        self.target = target

    def call(self, method: str, *arguments: Any) -> LocalCall:
        return LocalCall(self.target, method, arguments)

    def fetch(self, argument: Any) -> float:
        return 0.0


class LocalCluster(Cluster):
    """See `handles.Cluster`."""

    @classmethod
    def of(cls, actors: dict[str, Any], learners: dict[str, Any]) -> "LocalCluster":
        """Over objects of this process, by their names."""
        return cls(
            [ActorHandle(name, LocalTransport(actor)) for name, actor in actors.items()],
            [LearnerHandle(name, LocalTransport(learner)) for name, learner in learners.items()],
        )

    def gather(
        self,
        calls: Sequence[Any],
        progress: Progress | None = None,
        deadline_s: float | None = None,
    ) -> list[Any]:
        for call in calls:
            meter = getattr(call.target, "progress", None)
            if meter is not None:
                meter.listener = progress
        if len(calls) > 1 and all(call.method == "update" for call in calls):
            # none of several learners can wait for another in one process
            learners = [call.target for call in calls]
            parts = [call.arguments[0] for call in calls]
            return learners[0].update_in_turn(learners, parts, *calls[0].arguments[1:])
        return [call.result for call in calls]

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # each is closed, whatever another one raises
            for handle in (*self.learners, *self.actors):
                stack.callback(self.gather, [handle.close()])

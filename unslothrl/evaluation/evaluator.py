"""Draws the completions of evaluation sets as a run draws its own, without a learner."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unslothrl import cluster
from unslothrl.cluster.base import Checks, Cluster
from unslothrl.config.options import Config
from unslothrl.records import Group, Task
from unslothrl.rewards.scorer import FailureReport
from unslothrl.system.machine import Machine
from unslothrl.tracking.terminal import Terminal
from unslothrl.training.group_source import Evaluation
from unslothrl.training.rollouts import RolloutStream
from unslothrl.weights.adapter import Adapter


class EvaluationStream(RolloutStream):
    """Deals tasks as the run did, whose learners may have drawn some: here actors stand in."""

    def __init__(self, processes: Cluster, config: Config, note: Callable[[str], None]):
        super().__init__(processes, config.learner_chunk_size, note=note)
        self.stand_ins = stand_ins(config)

    def _counts(self, total: int, learners: int, learner_chunk: int) -> Sequence[int]:
        stand_ins = min(self.stand_ins, len(self.pool.ready()))
        return super()._counts(total, stand_ins, learner_chunk)


def stand_ins(config: Config) -> int:
    """Actors for learners that draw."""
    return config.number_of_learners if config.learner_evaluates else 0


def engine_of(config: Config) -> str:
    """What a run draws its evaluations with: the learner's own where there are no actors."""
    if config.number_of_actors == 0 and not config.learner_has_engine:
        return "transformers"
    return config.engine


@dataclass(frozen=True)
class Policy:
    """What is evaluated: an adapter over the base, or the base alone."""

    name: str
    adapter: Adapter | None = None


class Evaluator:
    """Actors that draw under one policy after the other."""

    def __init__(
        self, config: Config, processes: Cluster, sets: Mapping[str, list[Task]], view: Terminal
    ):
        self.stream = EvaluationStream(processes, config, note=view.note)
        failures = FailureReport(view.note)
        self.evaluation = Evaluation(config, sets, self.stream, failures, view)

    def draw(self, policy: Policy) -> dict[str, list[Group]]:
        """What a policy draws: see `Evaluation.draw`."""
        if policy.adapter is not None:
            self.stream.publish(policy.adapter, policy.adapter.version)
        return self.evaluation.draw(policy.name)


@contextlib.contextmanager
def evaluator(
    config: Config,
    base: Path,
    sets: Mapping[str, list[Task]],
    policies: Sequence[Policy],
    level: str | None,
    view: Terminal,
) -> Iterator[Evaluator]:
    """Inside it the actors of a run of `config` are there, and no learner. UserError, RunError."""
    from unslothrl.weights.published import Published

    shapes = [Published(each.adapter).shape() for each in policies if each.adapter is not None]
    generators = config.number_of_actors + stand_ins(config)
    alone = replace(
        config,
        number_of_learners=0,
        number_of_actors=generators,
        max_staleness=0,
        engine=engine_of(config),
    )
    processes = cluster.start(alone, base, Machine.detect(), view.stage)
    try:
        Checks(level, shape=shapes[0] if shapes else None).check_all(processes)
        yield Evaluator(config, processes, sets, view)
    finally:
        processes.close()

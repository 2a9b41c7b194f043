"""Actors and learners without a model in Ray processes of their own: real actors over fake engines.
Ray's processes must have `PATH` as their PYTHONPATH."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fakes import FakeEngine, FakeLearner

from unslothrl.actors.actor import Actor, ProgressMeter
from unslothrl.config.options import Config
from unslothrl.planning.placement import ACTOR, LEARNER, ProcessPlan
from unslothrl.rewards import Chosen
from unslothrl.rewards.reward import IN_PLACE, Reward
from unslothrl.rewards.scorer import Scorer
from unslothrl.runs.resolve import resolve
from unslothrl.weights.adapter import Adapter

PATH = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
FLAGS = {
    "model": "embedded", "dataset": "embedded", "engine": "transformers", "backend": "peft",
    "learner": "grpo", "learner_chunk_size": 0, "eval_every": 0, "save_every": 10_000,
    "fit": "off",
}  # fmt: skip


def config_of(flags: Mapping[str, Any]) -> Config:
    return resolve({**FLAGS, **flags}).config


class Engine(FakeEngine):
    """Of the base that the learner has; a step takes some time."""

    def step(self):
        time.sleep(0.002)
        return super().step()

    def fingerprint(self) -> str:
        return "base"


def coin(completion: str) -> float:
    """A reward that is 1 for half of all texts."""
    return float(completion[-1:] < "n")


def build_actor(config: Config, base: Path, plan: ProcessPlan) -> Actor:
    reward = Chosen("coin", 1.0, "", IN_PLACE, False, Reward(coin, runs=IN_PLACE))
    letters = SimpleNamespace(decode=lambda ids, **_: "".join(chr(97 + id % 26) for id in ids))
    return Actor(plan.name, Engine(), letters, Scorer([reward]))


class Learner(FakeLearner):
    """Its versions are drawn from as from any other: they favour no token."""

    def __init__(self, name: str):
        super().__init__(name, lambda assignment, candidate: True)
        self.progress = ProgressMeter()

    def publish(self, version: int) -> Adapter:
        self.published = Adapter.of(version, b"version %d" % version, "{}")
        return self.published


def build_learner(config: Config, base: Path, plan: ProcessPlan) -> Learner:
    return Learner(plan.name)


BUILDERS = {ACTOR: build_actor, LEARNER: build_learner}

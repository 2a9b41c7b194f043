"""What builds simulated actors and learners inside the processes of a cluster."""

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from simulated.engine import EngineDelays, Lengths, SimulatedEngine
from simulated.learner import LearnerDelays, SimulatedLearner
from unslothrl.actors.actor import Actor
from unslothrl.config.options import Config
from unslothrl.planning.placement import ProcessPlan
from unslothrl.rewards import IN_PLACE, Chosen, Reward
from unslothrl.rewards.scorer import Scorer

TEXT_PER_TOKEN = 4  # characters


@dataclass(frozen=True)
class Simulation:
    """The engines and learners of a run."""

    engine: EngineDelays
    learner: LearnerDelays
    lengths: Lengths
    adapter_bytes: int = 1 << 20
    max_running: int = 256  # requests of an engine
    slowdowns: dict[str, float] = field(default_factory=dict)  # of actors, by name
    processes: Path | None = None  # folder where every actor leaves a file NAME.PID when it starts

    def build_actor(self, config: Config, base: Path, plan: ProcessPlan) -> Actor:
        """See `build.build_actor`."""
        if self.processes is not None:
            (self.processes / f"{plan.name}.{os.getpid()}").touch()
        time.sleep(self.engine.start_s)
        return self.actor(plan.name)

    def build_learner(self, config: Config, base: Path, plan: ProcessPlan) -> SimulatedLearner:
        """See `build.build_learner`."""
        time.sleep(self.learner.start_s)
        return SimulatedLearner(self.actor(plan.name), self.learner, self.adapter_bytes)

    def actor(self, name: str) -> Actor:
        """The real one, over a simulated engine."""
        delays = replace(self.engine, slowdown=self.slowdowns.get(name, 1.0))
        engine = SimulatedEngine(delays, self.lengths, self.max_running)
        return Actor(name, engine, SimulatedTokenizer(), Scorer([COIN]))


class SimulatedTokenizer:
    """Writes letters for tokens, as many characters as a real text has."""

    def decode(self, ids: list[int], **_) -> str:
        letters = (np.asarray(ids, np.int64) % 26 + 97).astype(np.uint8)
        return np.repeat(letters, TEXT_PER_TOKEN).tobytes().decode()


def coin(completion: str) -> float:
    """A reward that is 1 for half of all texts."""
    return float(completion[-1:] < "n")


COIN = Chosen("coin", 1.0, "", IN_PLACE, False, Reward(coin, runs=IN_PLACE))

"""A learner without a model: an update takes a set time, and its only weights are counts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simulated.engine import Delay
from unslothrl.actors.actor import Actor
from unslothrl.algorithms.diagnostics import agreement
from unslothrl.records import Batch, Measured, Sample, Update, UpdateStats
from unslothrl.weights.adapter import Adapter


@dataclass(frozen=True)
class LearnerDelays:
    """Seconds that a learner takes: update_s + token_s for each trained token, and start_s once."""

    update_s: float
    token_s: float = 0.0
    start_s: float = 0.0


@dataclass
class Trained:
    """What the learner has done; all of it is in a checkpoint."""

    steps: int = 0
    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of updates


class SimulatedLearner:
    """See `learners.learner.Learner`. What it draws, `actor` draws for it."""

    def __init__(
        self, actor: Actor, delays: LearnerDelays, adapter_bytes: int, wait: Delay | None = None
    ):
        self.actor, self.delays, self.adapter_bytes = actor, delays, adapter_bytes
        self.progress = actor.progress
        self.wait = wait or Delay()
        self.trained = Trained()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.actor, name)  # load, submit, collect, close, ...

    def update(
        self,
        batch: Batch,
        lrs: dict[str, float],
        train_policy: bool = True,
        deadline_s: float | None = None,
    ) -> Update:
        began = self.wait.clock()
        tokens = sum(sample.tokens for sample in batch.samples)
        sampler = np.concatenate(
            [np.empty(0, np.float32), *(sample.sampler_logprobs for sample in batch.samples)]
        )
        self.wait(self.delays.update_s + self.delays.token_s * tokens, began)
        trained = self.trained
        self.trained = Trained(
            trained.steps + 1,
            trained.samples + len(batch.samples),
            trained.tokens + tokens,
            trained.seconds + self.wait.clock() - began,
        )
        self.progress.set(len(batch.samples), tokens)
        sources = [(s.generator, s.policy_version, s.tokens) for s in batch.samples]
        agrees = agreement(sampler, sampler - np.float32(0.01), sources, batch.tokens)
        stats = UpdateStats(0.5, 0, 0, 0.0, agrees, np.zeros(1, np.float32))
        return Update(stats, 1.0, False, 0.0)

    def measure(self, samples: Sequence[Sample], reference: bool) -> list[Measured]:
        zeros = [np.zeros(sample.tokens, np.float32) for sample in samples]
        return [Measured(values, values if reference else None) for values in zeros]

    def publish(self, version: int) -> Adapter:
        return Adapter.of(version, random_bytes(version, self.adapter_bytes), "{}")

    def make_room(self) -> None:
        pass

    def save_state(self) -> bytes:
        return json.dumps(asdict(self.trained)).encode()

    def load_state(self, data: bytes) -> None:
        self.trained = Trained(**json.loads(data))


def random_bytes(seed: int, size: int) -> bytes:
    """Bytes that do not compress, of a seed."""
    return np.random.default_rng(seed).bytes(size)

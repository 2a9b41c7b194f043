"""The learners as one: what the trainer says to all of them, split and joined here."""

import dataclasses
from collections.abc import Sequence

from unslothrl.cluster.base import Cluster, Progress
from unslothrl.cluster.handles import Call
from unslothrl.training import balancing, batching
from unslothrl.training.balancing import Costs
from unslothrl.types import Adapter, Batch, Measured, Sample, StepResult, UpdateStats


class LearnerGroup:
    """Every learner has the same weights, bit for bit, before and after each method."""

    def __init__(self, cluster: Cluster, costs: Costs | None = None):
        """`costs`: what samples cost a learner, by which they are dealt."""
        self.cluster, self.learners = cluster, cluster.learners
        self.costs = costs or Costs()

    def renew(self) -> None:
        """The learners have been started again."""
        self.learners = self.cluster.learners

    def measure(
        self, samples: Sequence[Sample], reference: bool, progress: Progress
    ) -> list[Sample]:
        """The samples with what the learners say of them before an update, in order."""
        shares = balancing.balanced(samples, len(self.learners), self.costs)
        shares = [share for share in shares if share]
        answers = self.cluster.gather(
            [
                learner.measure([samples[i] for i in share], reference)
                for learner, share in zip(self.learners, shares, strict=False)
            ],
            progress,
        )
        measured: dict[int, Measured] = {}
        for share, answer in zip(shares, answers, strict=True):
            measured.update(zip(share, answer, strict=True))
        return [
            dataclasses.replace(sample, measured=measured[i]) for i, sample in enumerate(samples)
        ]

    def update(
        self, batch: Batch, lrs: dict[str, float], train_policy: bool, progress: Progress
    ) -> tuple[list[UpdateStats], StepResult]:
        """One optimiser step on a batch: each learner computes the gradient of its part, all step
        on the sum. Without `train_policy` the critic alone. -> (each part's stats, the result)."""
        parts = batching.split_batch(batch, len(self.learners), self.costs)
        updates = self.cluster.gather(
            [
                learner.update(part, lrs, train_policy)
                for learner, part in zip(self.learners, parts, strict=True)
            ],
            progress,
        )
        result = dataclasses.replace(
            updates[0].result, memory_mb=max(update.result.memory_mb for update in updates)
        )
        return [update.stats for update in updates], result

    def publish(self, version: int) -> Call[Adapter]:
        """The LoRA as it is now; the call is what generators load it from."""
        return self.learners[0].publish(version)

    def make_room(self) -> None:
        """Leaves the cards to the actors on them."""
        self.cluster.gather([learner.make_room() for learner in self.learners])

    def save_state(self) -> bytes:
        """What a checkpoint holds of the learners."""
        (state,) = self.cluster.gather([self.learners[0].save_state()])
        return state

    def load_state(self, state: bytes) -> None:
        self.cluster.gather([learner.load_state(state) for learner in self.learners])

"""The learners as one: what the trainer says to all of them, split and joined here."""

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from unslothrl.cluster.base import Cluster, Progress
from unslothrl.cluster.handles import Call, LearnerHandle
from unslothrl.errors import RunError
from unslothrl.records import Batch, Sample, StepResult, UpdateStats
from unslothrl.training import balancing, batching
from unslothrl.training.balancing import Costs
from unslothrl.training.timeouts import Pace
from unslothrl.weights.adapter import Adapter

T = TypeVar("T")


class LearnerGroup:
    """Every learner has the same weights, bit for bit, before and after each method."""

    def __init__(self, cluster: Cluster, costs: Costs | None = None):
        """`costs`: what samples cost a learner, by which they are dealt."""
        self.cluster, self.learners = cluster, cluster.learners
        self.costs = costs or Costs()
        self.update_pace, self.measure_pace = Pace(), Pace()

    def renew(self) -> None:
        """The learners have been started again, and compile again."""
        self.learners = self.cluster.learners
        self.update_pace, self.measure_pace = Pace(), Pace()

    def measure(
        self, samples: Sequence[Sample], reference: bool, progress: Progress
    ) -> list[Sample]:
        """The samples with what the learners say of them before an update, in order."""
        measured = self._shared(
            samples, lambda learner, share: learner.measure(share, reference), progress
        )
        return [
            dataclasses.replace(sample, measured=each)
            for sample, each in zip(samples, measured, strict=True)
        ]

    def judge(self, samples: Sequence[Sample], progress: Progress) -> list[float]:
        """What the reward model says of each, in order."""
        return self._shared(samples, lambda learner, share: learner.judge(share), progress)

    def _shared(
        self,
        samples: Sequence[Sample],
        ask: Callable[[LearnerHandle, list[Sample]], Call[list[T]]],
        progress: Progress,
    ) -> list[T]:
        """What the learners answer of the samples, each of its share; in order."""
        shares = balancing.balanced(samples, len(self.learners), self.costs)
        shares = [share for share in shares if share]
        parts = [[samples[i] for i in share] for share in shares]
        calls = [ask(learner, part) for learner, part in zip(self.learners, parts, strict=False)]
        with self._timed(self.measure_pace, self._largest(parts)) as deadline_s:
            answers = self.cluster.gather(calls, progress, deadline_s)
        found: dict[int, T] = {}
        for share, answer in zip(shares, answers, strict=True):
            found.update(zip(share, answer, strict=True))
        return [found[i] for i in range(len(samples))]

    def update(
        self, batch: Batch, lrs: dict[str, float], train_policy: bool, progress: Progress
    ) -> tuple[list[UpdateStats], StepResult]:
        """One optimiser step on a batch: each learner computes the gradient of its part, all step
        on the sum. Without `train_policy` the critic alone. -> (each part's stats, the result).

        RunError where the learners' weights differ afterwards.
        """
        parts = batching.split_batch(batch, len(self.learners), self.costs)
        with self._timed(
            self.update_pace, self._largest([part.samples for part in parts])
        ) as deadline_s:
            calls = [
                learner.update(part, lrs, train_policy, deadline_s)
                for learner, part in zip(self.learners, parts, strict=True)
            ]
            updates = self.cluster.gather(calls, progress, 2 * deadline_s)
        self._check_equal([update.result.checksum for update in updates])
        notes = [
            f"{learner.name}: {update.result.note}"
            for learner, update in zip(self.learners, updates, strict=True)
            if update.result.note
        ]
        result = dataclasses.replace(
            updates[0].result,
            memory_mb=max(update.result.memory_mb for update in updates),
            note="; ".join(notes),
        )
        return [update.stats for update in updates], result

    def _largest(self, shares: Sequence[Sequence[Sample]]) -> float:
        return max(map(self.costs.share, shares), default=0.0)

    @contextlib.contextmanager
    def _timed(self, pace: Pace, cost: float) -> Iterator[float]:
        """Gives the deadline of work of that cost, and remembers how long it took."""
        started = time.monotonic()
        yield pace.deadline_s(cost)
        pace.saw(cost, time.monotonic() - started)

    def _check_equal(self, checksums: Sequence[int]) -> None:
        """Raises RunError that names the learners whose weights are not those of most (of the
        first, where there is no majority)."""
        ((most, _),) = Counter(checksums).most_common(1)
        if different := [
            learner.name
            for learner, checksum in zip(self.learners, checksums, strict=True)
            if checksum != most
        ]:
            like = next(
                learner.name
                for learner, checksum in zip(self.learners, checksums, strict=True)
                if checksum == most
            )
            raise RunError(
                f"{' and '.join(different)} and {like} hold different adapters after an update, "
                "which makes them equal on sound machines: check their cards and memory, and "
                "continue from the last checkpoint with --resume"
            )

    def publish(self, version: int) -> Call[Adapter]:
        """The LoRA as it is now; the call is what generators load it from."""
        return self.learners[0].publish(version)

    def publish_again(self) -> Call[Adapter]:
        """The version that was published last, where what has arrived of it is damaged."""
        return self.learners[0].publish_again()

    def make_room(self) -> None:
        """Leaves the cards to the actors on them."""
        self.cluster.gather([learner.make_room() for learner in self.learners])

    def save_state(self) -> Call[bytes]:
        """What a checkpoint holds of the learners, as they are now or, where all is in one process,
        when its result is asked for."""
        return self.learners[0].save_state()

    def load_state(self, state: bytes) -> None:
        self.cluster.gather([learner.load_state(state) for learner in self.learners])

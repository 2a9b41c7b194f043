"""The stream of rollouts: which prompts are where, under which version, and the groups that come of
them.

Synchronous training drains it before every update. Who draws a prompt is then a function of the
run alone (`task_counts`), so that results do not depend on timing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from unslothrl.cluster.base import Cluster, Progress, generators
from unslothrl.types import Assignment, Group, Sampling, Task


@dataclass(frozen=True, slots=True)
class Flight:
    """Where a prompt is."""

    task: Task
    generator: str
    policy_version: int  # that was the newest when it was sent


class RolloutStream:
    """Sends prompts to the actors (and to learners that generate), and takes finished groups."""

    def __init__(self, cluster: Cluster, learner_chunk: int):
        """`learner_chunk`: the prompts of a step that each learner draws."""
        self.cluster, self.learner_chunk = cluster, learner_chunk
        self.in_flight: dict[int, Flight] = {}  # by the number of the group, as it was sent
        self.sent = 0
        self.reward_s = 0.0  # that scoring took beyond generation, in the last `drain`
        self.memory_mb = 0.0  # the largest generator's peak so far

    def send(
        self,
        tasks: Sequence[Task],
        candidates: int,
        sampling: Sampling,
        seed: tuple[int | str, ...],
        policy_version: int,
    ) -> None:
        """Has `candidates` completions drawn of every task. `seed` is what the draw is for."""
        calls, start = [], 0
        for generator, count in zip(self._generators(), self._counts(len(tasks)), strict=True):
            share = tasks[start : start + count]
            start += count
            assignments = [
                Assignment(self.sent + i, task, candidates, sampling, seed)
                for i, task in enumerate(share)
            ]
            self.sent += count
            self.in_flight |= {
                a.index: Flight(a.task, generator.name, policy_version) for a in assignments
            }
            if assignments:
                calls.append(generator.submit(assignments))
        self.cluster.gather(calls)

    def drain(self, progress: Progress | None = None) -> list[Group]:
        """All that is in flight, in the order in which it was sent."""
        names = {flight.generator for flight in self.in_flight.values()}
        collected = self.cluster.gather(
            [generator.collect() for generator in self._generators() if generator.name in names],
            progress,
        )
        self.reward_s = max((part.reward_s for part in collected), default=0.0)
        self.memory_mb = max([self.memory_mb, *(part.memory_mb for part in collected)])
        groups = dict(pair for part in collected for pair in part.groups)
        order = sorted(self.in_flight)
        self.in_flight = {}
        return [groups[index] for index in order]

    def _generators(self):
        """Those that draw; the learners alone where there are no actors."""
        return generators(self.cluster)

    def _counts(self, tasks: int) -> Sequence[int]:
        """How many tasks each generator draws."""
        actors, learners = len(self.cluster.actors), len(self.cluster.learners)
        return task_counts(tasks, actors, learners, self.learner_chunk)


def task_counts(total: int, actors: int, learners: int, learner_chunk: int) -> Sequence[int]:
    """How many of `total` tasks each generator takes: actors first, then learners.

    Learners take `learner_chunk` each, but never so much that an actor goes without; actors take
    the rest evenly, the remainder to the first. Without actors the learners take everything.
    """
    if actors == 0:
        return _even(total, learners)
    for_learners = min(learner_chunk * learners, max(0, total - actors))
    return [*_even(total - for_learners, actors), *_even(for_learners, learners)]


def _even(total: int, parts: int) -> list[int]:
    return [total // parts + (i < total % parts) for i in range(parts)]

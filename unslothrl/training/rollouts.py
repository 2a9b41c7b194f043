"""The stream of rollouts: which prompts are where, and the groups that come of them.

Synchronous training waits for all of them before every update. Who draws a prompt is then a
function of the run alone (`task_counts`), so that results do not depend on timing. With
`max_staleness` they are given to whoever has least to do, and drawn while the learners update.

A group is known by its index: it is given out again until it has come, and counts once.
"""

import functools
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from unslothrl.cluster.handles import Checks, Cluster, Collected, Progress
from unslothrl.records import Assignment, Group, Sampling, Task
from unslothrl.training.actor_health import Member, Pending, Version
from unslothrl.training.actor_pool import Pool

POLL_S = 0.05
SLICE_S, OVERLAPPED_SLICE_S = 1.0, 0.25  # of a `collect`, after which a process listens again
AHEAD = 2  # `collect` calls of a process that are begun while overlapping, so that it never waits


@dataclass(eq=False)
class RolloutStream:
    """Gives prompts to the actors (and to learners that generate), and takes finished groups."""

    cluster: Cluster
    learner_chunk: int  # prompts of a step that each learner draws
    note: Callable[[str], None] = lambda line: None
    checks: Checks = field(default_factory=Checks)
    min_actors: int = 1
    overlaps: bool = False  # groups are drawn beside updates
    groups_at_once: int = 2**20  # then, in each actor
    stand_ins: int = 0  # actors, the last ones, that are dealt tasks as the learners of a run
    in_flight: dict[int, Assignment] = field(default_factory=dict)  # groups to come, by index
    finished: dict[int, Group] = field(default_factory=dict)  # that nobody has taken yet
    sent: int = 0
    policy_version: int = 0  # the newest
    pumped: float = 0.0  # when, by the monotonic clock
    done: int = 0  # completions that actors have reported
    tokens: int = 0  # likewise
    reward_s: float = 0.0  # that scoring took beyond generation, in the last `wait`
    memory_mb: float = 0.0  # the largest generator's peak so far

    def __post_init__(self) -> None:
        actors = self.cluster.actors
        learners_draw = not self.overlaps and (self.learner_chunk > 0 or not actors)
        self.pool = Pool(
            self.cluster,
            self.checks,
            self.note,
            draws_with_learners=not self.overlaps,
            min_actors=min(max(self.min_actors, int(not learners_draw)), len(actors)),
            learners_draw=learners_draw,
        )
        if self.overlaps:
            self.cluster.meanwhile = self.meanwhile

    def send(
        self,
        tasks: Sequence[Task],
        candidates: int,
        sampling: Sampling,
        seed: tuple[int | str, ...],
        learner_chunk: int | None = None,
    ) -> list[int]:
        """Has `candidates` completions drawn of every task. `seed` is what the draw is for,
        `learner_chunk` the prompts that each learner draws if they are not those of a step.
        -> the groups' indices."""
        return self.send_assignments(
            [
                Assignment(self.sent + i, task, candidates, sampling, seed, is_urgent=True)
                for i, task in enumerate(tasks)
            ],
            self.learner_chunk if learner_chunk is None else learner_chunk,
        )

    def send_assignments(
        self, assignments: Sequence[Assignment], learner_chunk: int = 0
    ) -> list[int]:
        """`send` for groups with seeds of their own; their indices follow `sent`."""
        self.sent += len(assignments)
        indices = [assignment.index for assignment in assignments]
        for index, each in zip(indices, assignments, strict=True):
            self.in_flight[index] = replace(each, policy_version=self.policy_version)
        if self.overlaps:
            self.pump()
        else:
            members = self.pool.ready()
            learners = sum(m.is_learner for m in members) or min(self.stand_ins, len(members))
            actors = len(members) - learners
            counts = task_counts(len(indices), actors, learners, learner_chunk)
            rest = iter(indices)
            for member, count in zip(members, counts, strict=True):
                self._give(member, itertools.islice(rest, count))
        return indices

    def put(self, group: Group) -> int:
        """Takes a group that an earlier process drew. -> its index."""
        index = self.sent
        self.sent += 1
        self.finished[index] = group
        return index

    def _give(self, member: Member, indices: Iterable[int]) -> None:
        for index in indices:
            given = replace(self.in_flight[index], policy_version=self.policy_version)
            self.in_flight[index] = member.holds[index] = member.given[index] = given

    def meanwhile(self) -> None:
        """`pump`, while something else is waited for, as often as is needed."""
        if time.monotonic() - self.pumped >= POLL_S:
            self.pump()

    def pump(self, timeout_s: float = 0.0) -> None:
        """Keeps every process at work, and takes what has come, after at most `timeout_s`."""
        self._give_out()
        self.pool.poll(timeout_s)
        self._give_out()
        self.pumped = time.monotonic()

    def _give_out(self) -> None:
        self._give_waiting()
        for member in self.pool.members.values():
            while member.holds and member.collecting < (AHEAD if self.overlaps else 1):
                member.collecting += 1
                self._collect(member)

    def _give_waiting(self) -> None:
        """What waits in the driver goes to whoever has the fewest groups."""
        holders = self.pool.members.values()
        held = {index for member in holders for index in member.holds}
        waiting = [index for index in self.in_flight if index not in held]
        members = self.pool.ready() if waiting else []
        if self.overlaps and len(members) < self.pool.min_actors:
            return
        for index in sorted(waiting, key=lambda i: (not self.in_flight[i].is_urgent, i)):
            idlest = min(members, key=lambda member: len(member.holds), default=None)
            if idlest is None or len(idlest.holds) >= self.groups_at_once:
                break
            self._give(idlest, [index])

    def _collect(self, member: Member) -> None:
        least, seconds = (1, OVERLAPPED_SLICE_S) if self.overlaps else (None, SLICE_S)
        given, member.given = tuple(member.given.values()), {}
        call = member.handle.collect(least, seconds, given)
        done = functools.partial(self._collected, member)
        self.pool.call(member, Pending(call, "collect", done, told_s=seconds))

    def _collected(self, member: Member, collected: Collected) -> None:
        member.collecting -= 1
        groups, done = collected
        self.done += done["completions"]
        self.tokens += done["tokens"]
        self.reward_s = max(self.reward_s, done["reward_s"])
        self.memory_mb = max(self.memory_mb, done["memory_mb"])
        member.versions = done["versions"]
        self.pool.saw_work(member, done["engine_steps"], done["tokens"], done["engine_s"])
        if groups:
            self.pool.starts.pop(member.name, None)
        for index, group in groups:
            if self.in_flight.pop(index, None) is None:
                continue  # it has come before
            self.finished[index] = group
            for holder in self.pool.members.values():
                holder.holds.pop(index, None)

    def wait(self, indices: Collection[int], progress: Progress | None = None) -> list[Group]:
        """These groups, in order, when all are there. RunError: too few actors are left."""
        self.reward_s = 0.0
        done, tokens = self.done, self.tokens
        while not all(index in self.finished for index in indices):
            self.pump(POLL_S)
            if progress is not None:
                progress(self.done - done, self.tokens - tokens)
            self.raise_failure()
        return [self.finished.pop(index) for index in indices]

    def publish(self, adapter: Version, version: int) -> list[dict[str, float]]:
        """Has all that draw load a version, the newest from now on; while overlapping in between
        their other calls. -> what came of it, as far as it has."""
        self.policy_version = version
        loaded = self.pool.publish(adapter)
        while not self.overlaps and self.pool.is_loading() and self.pool.failure is None:
            self.pool.poll(POLL_S)
        return loaded

    def version_counts(self) -> tuple[int, int, int]:
        """As processes said last: versions loaded, unloaded, and the most held at once."""
        versions = [member.versions for member in self.pool.members.values()]
        loaded = self.pool.versions_ended + sum(loaded for loaded, _ in versions)
        unloaded = self.pool.versions_ended + sum(unloaded for _, unloaded in versions)
        most = max((loaded - unloaded for loaded, unloaded in versions), default=0)
        return loaded, unloaded, most

    def raise_failure(self) -> None:
        if self.pool.failure is not None:
            raise self.pool.failure

    def reset(self, timeout_s: float = 60.0) -> None:
        """Forgets all that is in flight: it will be drawn again under other indices."""
        self.in_flight, self.finished = {}, {}
        for member in self.pool.members.values():
            member.drop()
        for member in self.pool.ready():
            if not member.is_learner:
                self.pool.call(member, Pending(member.handle.abandon(), "abandon"))
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and any(m.pending for m in self.pool.ready()):
            self.pool.poll(POLL_S)


def task_counts(total: int, actors: int, learners: int, learner_chunk: int) -> Sequence[int]:
    """How many of `total` tasks each generator takes: actors first, then learners, who take
    `learner_chunk` each, but never so much that an actor goes without."""
    if actors == 0:
        return _even(total, learners)
    for_learners = min(learner_chunk * learners, max(0, total - actors))
    return [*_even(total - for_learners, actors), *_even(for_learners, learners)]


def _even(total: int, parts: int) -> list[int]:
    return [total // parts + (i < total % parts) for i in range(parts)] if parts else []

"""The stream of rollouts: which prompts are where, under which version, and the groups that come of
them.

Synchronous training waits for all of them before every update. Who draws a prompt is then a
function of the run alone (`task_counts`), so that results do not depend on timing. With
`max_staleness` they are given to whoever has least to do, and drawn while the learners update.

A group is known by its index. Whatever happens to the process that draws it, it is given out again
until it has come, and what comes a second time is ignored: each counts once.
"""

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from unslothrl.cluster.base import Checks, Cluster, Progress
from unslothrl.records import Assignment, Collected, Group, Sampling, Task
from unslothrl.training.members import Member, Version
from unslothrl.training.pool import Pool
from unslothrl.weights.adapter import Loaded

POLL_S = 0.05
LEAST_SLICE_S, MOST_SLICE_S = 0.05, 1.0  # of a `collect`
CALLS_PER_S = 200  # that the driver can well begin
RECENT = 16  # groups of an actor, by which is judged how much is left of the others
LEAST_LEFT = 0.1  # of a group that has taken as long as the quickest of those
AHEAD = 2  # `collect` calls of a process that are begun while overlapping, so that it never waits


@dataclass(frozen=True, slots=True)
class Flight:
    """Where a prompt is."""

    assignment: Assignment
    policy_version: int  # that was the newest when it was given out
    generator: str = ""  # "": it waits in the driver
    is_urgent: bool = False  # it is given out before others
    given: float = 0.0  # when it was given out, by the monotonic clock


class RolloutStream:
    """Gives prompts to the actors (and to learners that generate), and takes finished groups."""

    def __init__(
        self,
        cluster: Cluster,
        learner_chunk: int,
        *,
        note: Callable[[str], None] = lambda line: None,
        checks: Checks | None = None,
        min_actors: int = 1,
        overlaps: bool = False,
        groups_at_once: int = 2**20,
    ):
        """`learner_chunk`: the prompts of a step that each learner draws. `overlaps`: groups are
        drawn beside updates, at most `groups_at_once` in each actor."""
        self.cluster, self.learner_chunk = cluster, learner_chunk
        self.overlaps, self.groups_at_once = overlaps, groups_at_once
        learners_draw = not overlaps and (learner_chunk > 0 or not cluster.actors)
        self.pool = Pool(
            cluster,
            checks or Checks(),
            self,
            note,
            draws_with_learners=not overlaps,
            min_actors=min(max(min_actors, int(not learners_draw)), len(cluster.actors)),
            learners_draw=learners_draw,
        )
        self.in_flight: dict[int, Flight] = {}  # by the number of the group, as it was sent
        self.finished: dict[int, Group] = {}  # that nobody has taken yet
        self.sent = 0
        self.policy_version = 0  # the newest
        self.slice_s = MOST_SLICE_S
        self.collecting: dict[Member, int] = {}  # `collect` calls that have begun
        self.given: dict[Member, dict[int, Assignment]] = {}  # what goes with the next of them
        self.pumped = 0.0  # when, by the monotonic clock
        self.took: dict[str, deque[float]] = {}  # seconds of an actor's last groups, by its name
        self.done = self.tokens = 0  # completions and tokens that actors have reported
        self.reward_s = 0.0  # that scoring took beyond generation, in the last `wait`
        self.memory_mb = 0.0  # the largest generator's peak so far
        self.versions: dict[Member, tuple[int, int]] = {}  # loaded and unloaded by each process
        self.versions_ended = 0  # that were loaded by processes which are gone
        if overlaps:
            cluster.meanwhile = self.meanwhile

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
                Assignment(self.sent + i, task, candidates, sampling, seed)
                for i, task in enumerate(tasks)
            ],
            self.learner_chunk if learner_chunk is None else learner_chunk,
            is_urgent=True,
        )

    def send_assignments(
        self, assignments: Sequence[Assignment], learner_chunk: int = 0, is_urgent: bool = False
    ) -> list[int]:
        """`send` for groups with seeds of their own; their indices follow `sent`."""
        self.sent += len(assignments)
        for assignment in assignments:
            flight = Flight(assignment, self.policy_version, is_urgent=is_urgent)
            self.in_flight[assignment.index] = flight
        indices = [assignment.index for assignment in assignments]
        if self.overlaps:
            self.pump()
        else:
            self._deal(indices, learner_chunk)
        return indices

    def put(self, group: Group) -> int:
        """Takes a group that an earlier process drew. -> its index."""
        index = self.sent
        self.sent += 1
        self.finished[index] = group
        return index

    def _deal(self, indices: Sequence[int], learner_chunk: int) -> None:
        """Gives each generator its share, in order."""
        members = self.pool.ready()
        learners = sum(member.is_learner for member in members)
        start = 0
        counts = self._counts(len(indices), learners, learner_chunk)
        for member, count in zip(members, counts, strict=True):
            self._give(member, indices[start : start + count])
            start += count

    def _counts(self, total: int, learners: int, learner_chunk: int) -> Sequence[int]:
        """How many of `total` tasks each that is ready takes, of whom the last are `learners`."""
        return task_counts(total, len(self.pool.ready()) - learners, learners, learner_chunk)

    def _give(self, member: Member, indices: Sequence[int]) -> None:
        """They go with its next `collect`."""
        for index in indices:
            self.in_flight[index] = replace(
                self.in_flight[index],
                generator=member.name,
                policy_version=self.policy_version,
                given=time.monotonic(),
            )
            self.given.setdefault(member, {})[index] = self.in_flight[index].assignment

    @property
    def poll_s(self) -> float:
        """Between two looks at what has come: many actors hand over much in each."""
        return max(POLL_S, len(self.pool.members) / CALLS_PER_S / 10)

    def meanwhile(self) -> None:
        """`pump`, while something else is waited for, as often as is needed."""
        if time.monotonic() - self.pumped >= self.poll_s:
            self.pump()

    def pump(self, timeout_s: float = 0.0, progress: Progress | None = None) -> None:
        """Keeps every process at work, and takes what has come, after at most `timeout_s`."""
        self._give_out()
        self._keep_collecting()
        self.pool.poll(timeout_s, progress)
        self._give_out()
        self._keep_collecting()
        self.pumped = time.monotonic()

    def _give_out(self) -> None:
        """What waits in the driver goes to whoever has least to do. A group counts by what is left
        of it: when a batch is drawn, those of the one before it are nearly done in one actor and
        have just arrived from another, who must not get more for that."""
        waiting = [index for index, flight in self.in_flight.items() if not flight.generator]
        members = self.pool.ready() if waiting else []
        if self.overlaps and len(members) < self.pool.min_actors:
            return
        load = {member.name: 0.0 for member in members}
        least = {name: min(self.took[name]) for name in load if name in self.took}
        now = time.monotonic()
        for flight in self.in_flight.values():
            if flight.generator in load:
                seconds = least.get(flight.generator, math.inf)
                load[flight.generator] += max(LEAST_LEFT, 1 - (now - flight.given) / seconds)
        shares: dict[Member, list[int]] = {member: [] for member in members}
        idlest = [(load[member.name], place, member) for place, member in enumerate(members)]
        heapq.heapify(idlest)
        for index in sorted(waiting, key=lambda i: (not self.in_flight[i].is_urgent, i)):
            if not idlest or idlest[0][0] >= self.groups_at_once:
                break
            count, place, member = idlest[0]
            shares[member].append(index)
            heapq.heapreplace(idlest, (count + 1, place, member))
        for member, indices in shares.items():
            self._give(member, indices)

    def _keep_collecting(self) -> None:
        working = {flight.generator for flight in self.in_flight.values()}
        for member in self.pool.members.values():
            while member.name in working and self.collecting.get(member, 0) < self._ahead:
                self.collecting[member] = self.collecting.get(member, 0) + 1
                self._collect(member)

    @property
    def _ahead(self) -> int:
        return AHEAD if self.overlaps else 1

    def _collect(self, member: Member) -> None:
        least = 1 if self.overlaps else None
        between_s = len(self.pool.members) / CALLS_PER_S  # two calls of an actor, on average
        seconds = max(self.slice_s, between_s)
        given = tuple(self.given.pop(member, {}).values())
        call = member.handle.collect(
            least, None if self.cluster.is_local else seconds, given, between_s / 2
        )
        self.pool.call(
            member, "collect", call, lambda value: self._collected(member, value), told_s=seconds
        )

    def _collected(self, member: Member, collected: Collected) -> None:
        self.collecting[member] -= 1
        self.done += collected.completions
        self.tokens += collected.tokens
        self.reward_s = max(self.reward_s, collected.reward_s)
        self.memory_mb = max(self.memory_mb, collected.memory_mb)
        self.versions[member] = collected.versions_loaded, collected.versions_unloaded
        self.pool.saw_work(member, collected.engine_steps, collected.tokens, collected.engine_s)
        for index, group in collected.groups:
            flight = self.in_flight.pop(index, None)
            if flight is not None:  # else it has come before
                self.finished[index] = group
                took = self.took.setdefault(member.name, deque(maxlen=RECENT))
                took.append(max(1e-3, time.monotonic() - flight.given))

    def wait(self, indices: Collection[int], progress: Progress | None = None) -> list[Group]:
        """The groups of these indices, in their order, as soon as all are there. RunError where too
        few actors are left."""
        self.reward_s = 0.0
        done, tokens = self.done, self.tokens

        def report(more_done: int = 0, more_tokens: int = 0) -> None:
            if progress is not None:
                progress(self.done - done + more_done, self.tokens - tokens + more_tokens)

        while not all(index in self.finished for index in indices):
            self.pump(self.poll_s, report)
            report()
            self.raise_failure()
        return [self.finished.pop(index) for index in indices]

    def publish(self, adapter: Version, version: int) -> list[Loaded]:
        """Has all that draw load a version, the newest from now on; while overlapping in between
        their other calls. -> what came of it, as far as it has."""
        self.policy_version = version
        loaded = self.pool.publish(adapter)
        while not self.overlaps and self.pool.is_loading() and self.pool.failure is None:
            self.pool.poll(POLL_S)
        return loaded

    def version_counts(self) -> tuple[int, int, int]:
        """As the processes said with what they handed over last: versions loaded into engines so
        far, those of them unloaded, and the most that any engine holds. A process that has ended
        holds none."""
        loaded, unloaded = self.versions_ended, self.versions_ended
        most = 0
        for of_engine, ended in self.versions.values():
            loaded, unloaded = loaded + of_engine, unloaded + ended
            most = max(most, of_engine - ended)
        return loaded, unloaded, most

    def raise_failure(self) -> None:
        """RunError where too few actors are left."""
        if self.pool.failure is not None:
            raise self.pool.failure

    def pace(self, step_s: float) -> None:
        """Lets the processes listen to the driver several times in a step of so many seconds."""
        if self.overlaps:
            self.slice_s = min(max(step_s / 10, LEAST_SLICE_S), MOST_SLICE_S)

    def reset(self, timeout_s: float = 60.0) -> None:
        """Forgets all that is in flight: it will be drawn again under other indices."""
        self.in_flight, self.finished, self.given = {}, {}, {}
        for member in self.pool.ready():
            if not member.is_learner:
                self.pool.call(member, "abandon", member.handle.abandon())
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and any(m.pending for m in self.pool.ready()):
            self.pool.poll(POLL_S)

    def lost(self, member: Member) -> None:
        self.collecting.pop(member, None)
        self.given.pop(member, None)
        self.took.pop(member.name, None)
        self.versions_ended += self.versions.pop(member, (0, 0))[0]
        for index, flight in self.in_flight.items():
            if flight.generator == member.name:
                self.in_flight[index] = replace(flight, generator="")

    def late(self, member: Member) -> None:
        """Whoever is first counts; should it go on after all, it stops drawing the rest."""
        of_member = [index for index, f in self.in_flight.items() if f.generator == member.name]
        for index in of_member:
            self.in_flight[index] = replace(self.in_flight[index], generator="")
        self.given.pop(member, None)
        if of_member:
            self.pool.call(member, "abandon", member.handle.abandon(of_member))

    def result_lost(self, member: Member) -> None:
        """What it has in flight still is ignored there; what it handed over is drawn again."""
        self.collecting[member] = sum(pending.kind == "collect" for pending in member.pending)
        flights = self.in_flight.items()
        self._give(member, [index for index, f in flights if f.generator == member.name])

    def has_work(self, member: Member) -> bool:
        return any(flight.generator == member.name for flight in self.in_flight.values())

    def ready(self, member: Member) -> None:
        """It gets what waits with the next `pump`."""


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
    return [total // parts + (i < total % parts) for i in range(parts)] if parts else []

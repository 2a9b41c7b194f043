"""The actors of a run, supervised: a dead, hung or slow one is started again, nodes come and go.

A process does its calls one after the other; what comes of each goes to whoever asked. A call that
is not done in time, by what such calls have taken so far, means that its process hangs.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from unslothrl.cluster.causes import summary_of
from unslothrl.cluster.handles import Checks, Clock, Cluster, Found
from unslothrl.errors import (
    AdapterDamaged,
    AdapterMismatch,
    ProcessLost,
    ResultLost,
    RunError,
    UserError,
)
from unslothrl.text import counted
from unslothrl.training import actor_health as limits
from unslothrl.training.actor_health import Member, Pending, Version

MOST_RESTARTS = 3  # in a row, of an actor that hands nothing over in between
LOOK_S = 0.5  # between two looks at the processes
CHANGES_S = 5.0  # between two looks at the nodes
MOST_DAMAGED = 3  # versions that arrive damaged at one process: its own memory may be bad
WAIT_S = 1800.0  # for actors to come back, where there are fewer than the run goes on with


@dataclass(eq=False)
class Pool:
    """Calls the processes that draw, and replaces actors. Without `learners_draw` the learners load
    versions and are given no work."""

    cluster: Cluster
    checks: Checks
    note: Callable[[str], None]
    draws_with_learners: bool
    min_actors: int
    learners_draw: bool
    newest: Version | None = None
    longest: dict[str, float] = field(default_factory=dict)  # seconds of a call so far, by its kind
    damaged: Counter[Member] = field(default_factory=Counter)  # versions that have arrived so
    waiting: set[str] = field(default_factory=set)  # actors that there is no room for now
    starts: Counter[str] = field(default_factory=Counter)  # since an actor last handed work over
    slow: set[str] = field(default_factory=set)  # that were started again for it
    failure: RunError | None = None  # too few actors are left
    replaced: int = 0  # in the whole run
    versions_ended: int = 0  # that were loaded by processes which are gone
    waiting_since: float | None = None  # with fewer actors than min_actors

    def __post_init__(self) -> None:
        self.members = {handle.name: Member(handle) for handle in self.cluster.actors}
        self.renew_learners()
        self.clock = Clock(time.monotonic)
        self.looked = self.looked_at_nodes = time.monotonic()

    def ready(self) -> list[Member]:
        """Those that may be given work, actors first, in the order of their names' numbers."""
        ready = [
            m
            for m in self.members.values()
            if m.is_at_work and not m.is_late and (self.learners_draw or not m.is_learner)
        ]
        return sorted(ready, key=lambda m: (m.is_learner, int(m.name.rpartition("-")[2])))

    def call(self, member: Member, pending: Pending) -> None:
        """Hands what comes of a call of `member` to its `done`, in some later `poll`."""
        if not member.pending:
            member.began = self.clock.now()
        member.pending.append(pending)

    def poll(self, timeout_s: float) -> None:
        """Takes what has ended, after at most `timeout_s`; looks after the processes."""
        waiting = {p.call: member for member in self.members.values() for p in member.pending}
        if waiting:
            for call, value, error in self.cluster.poll(waiting, timeout_s):
                member = waiting[call]
                if self.members.get(member.name) is not member:
                    continue  # it has been replaced meanwhile
                pending = next(p for p in member.pending if p.call is call)
                member.pending.remove(pending)
                member.ended.add(pending.kind)
                member.is_late = False
                began, member.began = member.began, self.clock.now()
                seconds = member.began - began - pending.told_s
                self.longest[pending.kind] = max(0.0, seconds, self.longest.get(pending.kind, 0.0))
                if error is None:
                    pending.done(value)
                else:
                    self._failed(member, pending, error)
        else:
            time.sleep(timeout_s)
        self._look_after()

    def _failed(self, member: Member, pending: Pending, error: Exception) -> None:
        if pending.version is not None and isinstance(error, AdapterDamaged):
            return self._fetch_again(member, pending, error)
        is_others = isinstance(error, ProcessLost) and error.name != member.name
        if pending.version is not None and (is_others or isinstance(error, ResultLost)):
            return self._version_lost(member, pending.version, error)
        is_lost = isinstance(error, ProcessLost | AdapterMismatch)
        if not member.is_ready and not member.is_learner:
            line = str(error) if isinstance(error, UserError | RunError) else summary_of(error)
            why = error if is_lost else RunError(f"{member.name} has not started ({line})")
            self.lose(member, why, elsewhere=True)
        elif isinstance(error, ResultLost):  # what it has in flight still is ignored there
            member.collecting = sum(each.kind == "collect" for each in member.pending)
            member.given |= member.holds
        elif is_lost:
            self.lose(member, error)
        else:
            raise error from error.__cause__

    def _fetch_again(self, member: Member, pending: Pending, error: AdapterDamaged) -> None:
        """What `member` got of a version is damaged: the learner publishes it once more, for all,
        unless it has already, or it is superseded."""
        if pending.version is self.newest:
            self.damaged[member] += 1
            if self.damaged[member] > MOST_DAMAGED:
                text = f"{member.name}: {error}, as {MOST_DAMAGED} before it"
                return self.lose(member, ProcessLost(member.name, text), elsewhere=True)
            self.note(f"{member.name}: {error}: it is fetched again")
            self.newest = self.cluster.learners[0].publish_again()
        if not member.is_ready:
            self._load(member)
        elif self.newest and all(p.version is not self.newest for p in member.pending):
            self._call_load(member, self.newest, pending.done)

    def _version_lost(self, member: Member, version: Version, error: Exception) -> None:
        """The learner died before its version was there, or since. ProcessLost, once each."""
        if isinstance(error, ResultLost):
            name = self.cluster.learners[0].name
            error = ProcessLost(name, f"the version that {name} published is lost ({error})")
        is_newest = version is self.newest
        if is_newest:
            self.newest = None
        if not member.is_ready:
            self._load(member)
        if is_newest:
            raise error

    def lose(self, member: Member, error: Exception, elsewhere: bool = False) -> None:
        """Gives a process up; an actor starts again, maybe `elsewhere`. A learner: `error`."""
        if member.is_learner:
            raise error
        name = member.name
        del self.members[name]  # whatever it was to draw waits again
        self.versions_ended += member.versions[0]
        self.starts[name] += 1
        if self.starts[name] > MOST_RESTARTS:
            self.note(f"{error}: not started again after {MOST_RESTARTS} failed starts in a row")
            self.cluster.remove_actor(name)
        else:
            self.note(f"{error}: started again, and what it had in hand is given out again")
            self._start(name, elsewhere)
        self.replaced += 1

    def stop(self, name: str, why: str) -> None:
        """Gives up an actor that draws under another policy than it says."""
        if name in self.members:
            self.lose(self.members[name], AdapterMismatch(f"{why}: it is stopped"))

    def _start(self, name: str, elsewhere: bool = False) -> None:
        """Begins to start an actor, or has it wait until it can be."""
        try:
            handle, ready = self.cluster.add_actor(name, elsewhere)
        except RunError as error:
            if name not in self.waiting:
                self.note(f"{name} waits: {error}")
            self.waiting.add(name)
            return
        self.waiting.discard(name)
        member = self.members[name] = Member(handle, is_ready=False)
        self.call(member, Pending(ready, "start", lambda _: self._check(member)))

    def _check(self, member: Member) -> None:
        """Before a process that has started works: is it like the others?"""

        def checked(found: Found) -> None:
            if error := self.checks.problem(member.name, found):
                self.lose(member, error, elsewhere=True)
            else:
                self._load(member)

        self.call(member, Pending(self.checks.call(member.handle), "check", checked))

    def _load(self, member: Member, has: Version | None = None) -> None:
        """Loads the newest version, and again where a newer one has come; then it works."""
        newest = self.newest
        if newest is not None and newest is not has:
            self._call_load(member, newest, lambda _: self._load(member, newest))
        elif not member.is_ready:
            member.is_ready = True
            self.note(f"{member.name} is ready")

    def _call_load(self, member: Member, version: Version, done: Callable[[Any], None]) -> None:
        self.call(member, Pending(member.handle.load(version), "load", done, version=version))

    def publish(self, adapter: Version) -> list[dict[str, float]]:
        """Has every process load a version, before what it is given from now on. -> what came of
        it, one entry for each actor that has done so: the list grows."""
        self.newest = adapter
        loaded: list[dict[str, float]] = []
        for member in self.members.values():
            if member.is_ready:  # others load the newest when they are
                found = [] if member.is_learner else loaded
                self._call_load(member, adapter, found.append)
        return loaded

    def is_loading(self) -> bool:
        """Whether one of those that work has yet to load what was published; who may hang is not
        waited for, and loads it before anything else."""
        ready = [m for m in self.members.values() if m.is_ready and not m.is_late]
        return any(pending.kind == "load" for member in ready for pending in member.pending)

    def saw_work(self, member: Member, steps: int, tokens: int, seconds: float) -> None:
        """Of so many steps of its engine."""
        member.speed.saw(steps, tokens, seconds)

    def renew_learners(self) -> None:
        """The learners have been started, and have published nothing yet."""
        self.newest = None
        if self.draws_with_learners:
            for handle in self.cluster.learners:
                self.members[handle.name] = Member(handle)

    def actors(self) -> list[Member]:
        """Those that can be started again."""
        return [member for member in self.members.values() if not member.is_learner]

    def _look_after(self) -> None:
        now = time.monotonic()
        if self.cluster.is_local or now - self.looked < LOOK_S:
            return
        self.looked = now
        self.cluster.check_learners()
        for member in list(self.members.values()):
            if member.pending:
                self._look_at_call(member, self.clock.now() - member.began)
        self._look_at_speeds(self.clock.now())
        if now - self.looked_at_nodes > CHANGES_S:
            self.looked_at_nodes = now
            self._look_at_nodes()
        for member in self.actors():  # those that have handed over all that they had move
            if member.is_leaving and not member.holds:
                del self.members[member.name]
                self.versions_ended += member.versions[0]
                self._start(member.name, elsewhere=True)
        self._look_at_number(now)

    def _look_at_call(self, member: Member, age_s: float) -> None:
        pending = member.pending[0]
        kind, is_first = pending.kind, pending.kind not in member.ended
        taken_s, silent_s = age_s - pending.told_s, 0.0
        allowed_s, late_s = limits.limits_s(None if is_first else self.longest.get(kind))
        if kind == "start":
            allowed_s = self.cluster.start_allowed_s()
        elif taken_s > limits.ASK_S:
            silent_s = self.cluster.silence_s(member.handle)
        silence_s = limits.FIRST_SILENT_S if is_first else limits.SILENT_S
        if taken_s > allowed_s or silent_s > silence_s:
            why = f"{kind}: {pending.told_s + allowed_s:.0f} s allowed"
            if silent_s > silence_s:
                why = f"its watchdog for {silent_s:.0f} s, {silence_s:.0f} s allowed"
            text = f"{member.name} has not answered for {age_s:.0f} s ({why}): it hangs"
            self.lose(member, ProcessLost(member.name, text), elsewhere=True)
        else:
            usual_s = min(limits.USUAL * self.cluster.answer_s(), limits.MOST_USUAL_S)
            if taken_s > late_s or silent_s > limits.LATE_SILENT_S + usual_s:
                self._may_hang(member)

    def _may_hang(self, member: Member) -> None:
        """Before it is known whether it does, those that work draw what it has."""
        others = any(other is not member for other in self.ready())
        if others and member.is_ready and not member.is_late and not member.is_learner:
            member.is_late = True
            if indices := member.drop():  # whoever is first counts
                self.call(member, Pending(member.handle.abandon(indices), "abandon"))

    def _look_at_speeds(self, now: float) -> None:
        """A slow actor is started again once; where that does not help, it gets less to do."""
        members = [member for member in self.actors() if member.speed.recent]
        step_s = {member: member.speed.step_s for member in members}
        fastest = min(step_s.values(), default=0.0)
        for member in members:
            slowness, limit = 1.0, limits.SLOW if member.slow_since is None else limits.SLOW / 2
            if step_s[member] > limit * fastest and member.name not in self.slow:
                others = [other.speed for other in members if other is not member]
                slowness = member.speed.slowness(others)
            if slowness < limit:
                member.slow_since = None
                continue
            member.slow_since = member.slow_since or now
            slow_s = now - member.slow_since
            if slow_s > limits.SLOW_S:
                self.slow.add(member.name)
                text = f"{member.name} is {slowness:.0f} times as slow as the others"
                self.lose(member, ProcessLost(member.name, text))
            elif slow_s > limits.HELD_UP_S and [m for m in self.ready() if m.holds] == [member]:
                self._may_hang(member)  # all wait for it

    def _look_at_nodes(self) -> None:
        changes = self.cluster.changes()
        for line in changes.notes:
            self.note(line)
        for name in changes.leaving:
            if name in self.members and not self.members[name].is_leaving:
                self.note(f"{name} leaves its node: it gets nothing new")
                self.members[name].is_leaving = True
        for name in changes.joined:
            if name not in self.members:
                self.note(f"a node has joined: {name} starts on it")
                self._start(name)
        for name in sorted(self.waiting):
            self._start(name)

    def _look_at_number(self, now: float) -> None:
        """Sets `failure` where the run cannot go on, for whoever waits for groups to raise."""
        ready = sum(member.is_at_work for member in self.actors())
        coming = len(self.actors()) - ready + len(self.waiting)
        if ready >= self.min_actors:
            self.waiting_since = None
            return
        if self.waiting_since is None:
            self.waiting_since = now
            self.note(
                f"waiting for actors: {counted(ready, 'actor')} at work, {coming} starting, and "
                f"min_actors is {self.min_actors}"
            )
        if ready + coming < self.min_actors or now - self.waiting_since > WAIT_S:
            self.failure = RunError(
                f"{counted(ready, 'actor')} left, and min_actors is {self.min_actors}: see the "
                "lines above, and continue with --resume when there are more"
            )

"""A cluster without processes, whose actors die, hang and lose results when a test says so."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from fakes import FakeGenerator

from unslothrl.cluster.handles import ActorHandle, Call, Changes, Outcome
from unslothrl.errors import ProcessLost, ResultLost, RunError


class FakeCall(Call[Any]):
    def __init__(self, process: "FakeProcess", method: str, arguments: tuple):
        self.process, self.method, self.arguments = process, method, arguments
        self.outcome: Outcome | None = None  # given to whoever asks, again and again


class FakeProcess:
    """Does its calls in order, one a poll."""

    def __init__(self, name: str, target: Any):
        self.name, self.target = name, target
        self.is_dead = self.is_hanging = self.loses_next = False
        self.queue: list[FakeCall] = []

    def call(self, method: str, *arguments: Any) -> FakeCall:
        self.queue.append(FakeCall(self, method, arguments))
        return self.queue[-1]

    def fetch(self, argument: Any) -> float:
        return 0.0

    def outcome(self, call: FakeCall) -> Outcome:
        self.queue.remove(call)
        if self.is_dead:
            return call, None, ProcessLost(self.name, f"{self.name} died")
        try:
            arguments = [a.value if isinstance(a, Published) else a for a in call.arguments]
            value = getattr(self.target, call.method)(*arguments)
        except Exception as error:
            return call, None, error
        if self.loses_next and call.method == "collect":
            self.loses_next = False
            return call, None, ResultLost("a result was lost")
        return call, value, None


class Published(Call[Any]):
    """An adapter that a learner has published."""

    def __init__(self, value: Any):
        self.value = value


class Target(FakeGenerator):
    """An actor that hands over one group a call, the oldest first."""

    def __init__(self, name: str, is_right: Callable):
        super().__init__(name, is_right)
        self.given: list[Any] = []  # every assignment that it ever got

    def ready(self) -> None:
        pass

    def submit(self, assignments: Sequence[Any]) -> None:
        self.given += assignments
        known = {assignment.index for assignment in self.submitted}
        self.submitted += [each for each in assignments if each.index not in known]

    def collect(self, least=None, seconds=None, assignments=()):
        self.submit(assignments)
        rest, self.submitted = self.submitted[1:], self.submitted[:1]
        collected = super().collect(least, seconds)
        self.submitted = rest
        return collected

    def abandon(self, indices: Collection[int] | None = None) -> None:
        self.submitted = []


def holder(stream: Any, index: int) -> str:
    """Who draws a group; "": nobody yet."""
    members = stream.pool.members.values()
    return next((member.name for member in members if index in member.holds), "")


class FakeCluster:
    """See `cluster.handles.Cluster`."""

    is_local = False

    def __init__(self, actors: int, is_right: Callable = lambda assignment, candidate: True):
        self.is_right = is_right
        self.learners: Sequence[Any] = ()
        self.processes: dict[str, FakeProcess] = {}
        self.actors: Sequence[ActorHandle] = ()
        self.started: list[str] = []
        self.starts_in_vain: set[str] = set()
        self.hangs_next: set[str] = set()  # actors that hang when they are started next
        self.silent: dict[str, float] = {}  # seconds since a process answered
        self.answers_take_s = 0.0
        self.without_room: set[str] = set()  # actors
        self.moved: list[str] = []  # actors that were started on another node if there is one
        self.next_changes = Changes()
        for index in range(actors):
            self._start(f"actor-{index}")

    def _start(self, name: str) -> ActorHandle:
        self.processes[name] = FakeProcess(name, Target(name, self.is_right))
        handle = ActorHandle(name, self.processes[name])
        self.actors = [*(actor for actor in self.actors if actor.name != name), handle]
        return handle

    def poll(self, calls: Collection[Any], timeout_s: float) -> list[Outcome]:
        for process in {call.process for call in calls if call.outcome is None}:
            if process.queue and (process.is_dead or not process.is_hanging):
                first = process.queue[0]
                first.outcome = process.outcome(first)
        return [call.outcome for call in calls if call.outcome is not None]

    def silence_s(self, handle: Any) -> float:
        return self.silent.get(handle.name, 0.0)

    def answer_s(self) -> float:
        return self.answers_take_s

    def check_learners(self) -> None:
        pass

    def start_allowed_s(self) -> float:
        return 60.0

    def changes(self) -> Changes:
        changes, self.next_changes = self.next_changes, Changes()
        return changes

    def add_actor(self, name: str, elsewhere: bool = False):
        if name in self.without_room:
            raise RunError("no node has room for it")
        self.started.append(name)
        self.moved += [name] if elsewhere else []
        self.silent.pop(name, None)
        handle = self._start(name)
        self.processes[name].is_dead = name in self.starts_in_vain
        self.processes[name].is_hanging = name in self.hangs_next
        self.hangs_next.discard(name)
        return handle, self.processes[name].call("ready")

    def remove_actor(self, name: str) -> None:
        self.actors = [actor for actor in self.actors if actor.name != name]

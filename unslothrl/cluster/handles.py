"""Actors and learners as the driver sees them: their methods, wherever they run.

Each method begins a call of the method of the same name (`actor.Actor`, `learner.Learner`) and
returns a `Call` of its result. An argument may itself be a call: its result then goes from process
to process and never through the driver.
"""

from collections.abc import Collection, Sequence
from typing import Any, Generic, Protocol, TypeVar

from unslothrl.records import Assignment, Batch, Group, Sample, Update
from unslothrl.tracking.profiler import Recording
from unslothrl.weights.adapter import Adapter, AdapterShape

T = TypeVar("T")
Collected = tuple[Sequence[tuple[int, Group]], dict[str, Any]]
"""What an actor hands over: complete groups, by their assignments' index, and metrics (see
`actor.Actor.collect`)."""


class Call(Generic[T]):
    """A call that has begun; `Cluster.gather` has its result."""


class Transport(Protocol):
    """The way to one process, or to an object of this one."""

    def call(self, method: str, *arguments: Any) -> Call[Any]: ...

    def fetch(self, argument: Any) -> Call[float] | float:
        """Brings an argument of a later call to the process's node, beside what the process is
        doing. -> seconds"""


class ActorHandle:
    """Its methods are those of `actor.Actor`."""

    def __init__(self, name: str, transport: Transport):
        self.name, self.transport = name, transport

    def collect(
        self,
        least: int | None = None,
        seconds: float | None = None,
        assignments: Sequence[Assignment] = (),
    ) -> Call[Collected]:
        return self.transport.call("collect", least, seconds, assignments)

    def abandon(self, indices: Collection[int] | None = None) -> Call[None]:
        return self.transport.call("abandon", indices)

    def load(self, adapter: "Adapter | Call[Adapter]") -> Call[dict[str, float]]:
        """Makes `adapter` the policy. It is fetched first, while earlier calls still run."""
        return self.transport.call("load", adapter, self.transport.fetch(adapter))

    def check(self, level: str | None, shape: AdapterShape | None = None) -> Call[tuple[str, str]]:
        return self.transport.call("check", level, shape)

    def start_profile(self) -> Call[None]:
        return self.transport.call("start_profile")

    def end_profile(self) -> Call[list[Recording]]:
        return self.transport.call("end_profile")

    def close(self) -> Call[None]:
        return self.transport.call("close")


class LearnerHandle(ActorHandle):
    """Its methods are those of `learner.Learner`, which generates as an actor does."""

    def adapter_shape(self) -> Call[AdapterShape]:
        return self.transport.call("adapter_shape")

    def listen(self, host: str | None = None) -> Call[str]:
        return self.transport.call("listen", host)

    def join(self, rank: int, world_size: int, address: str) -> Call[None]:
        return self.transport.call("join", rank, world_size, address)

    def measure(self, samples: Sequence[Sample], reference: bool) -> Call[list[dict[str, Any]]]:
        return self.transport.call("measure", samples, reference)

    def judge(self, samples: Sequence[Sample]) -> Call[list[float]]:
        return self.transport.call("judge", samples)

    def update(
        self,
        batch: Batch,
        lrs: dict[str, float],
        train_policy: bool = True,
        deadline_s: float | None = None,
    ) -> Call[Update]:
        return self.transport.call("update", batch, lrs, train_policy, deadline_s)

    def publish(self, version: int) -> Call[Adapter]:
        return self.transport.call("publish", version)

    def publish_again(self) -> Call[Adapter]:
        return self.transport.call("publish_again")

    def make_room(self) -> Call[None]:
        return self.transport.call("make_room")

    def save_state(self) -> Call[bytes]:
        return self.transport.call("save_state")

    def load_state(self, data: bytes) -> Call[None]:
        return self.transport.call("load_state", data)

"""What the driver asks of the processes of a run, typed, and what all of them must agree on before
they work, at the start and when one is started again.

Each method begins a call of the method of the same name (`actor.Actor`, `learner.Learner`) and
returns a `Call` of its result. An argument may itself be a call: its result then goes from process
to process and never through the driver.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from unslothrl.errors import ProcessLost, RunError, UserError
from unslothrl.records import Assignment, Batch, Group, Proof, Sample, Update
from unslothrl.weights.adapter import Adapter, AdapterShape

if TYPE_CHECKING:
    from unslothrl.tracking.profiler import Recording

STALL_S = 5.0  # between two looks that follow one another within a second
T = TypeVar("T")
Found = tuple[str, str, int | None]  # by a process of itself, see `Actor.check`
Collected = tuple[Sequence[tuple[int, Group]], dict[str, Any]]
"""What an actor hands over: complete groups, by their assignments' index, and metrics (see
`actor.Actor.collect`)."""


class Call(Generic[T]):
    """A call that has begun; `Cluster.gather` has its result."""


class Clock:
    """Counts seconds but for those in which nobody looked for far too long: when the driver itself
    was stopped, by Ctrl-Z or with its container, nobody else was late."""

    def __init__(self, read: Callable[[], float] = time.monotonic):
        self.read, self.seconds, self.looked = read, 0.0, read()

    def now(self) -> float:
        passed = self.read() - self.looked
        self.looked += passed
        self.seconds += passed if passed <= STALL_S else 0.0
        return self.seconds


class Transport(Protocol):
    """The way to one process, or to an object of this one."""

    def call(self, method: str, *arguments: Any) -> Call[Any]: ...

    def fetch(self, argument: Any) -> Call[float] | float:
        """Brings an argument of a later call to the process's node meanwhile. -> seconds"""


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

    def check(self, level: str | None, shape: AdapterShape | None = None) -> Call[Found]:
        return self.transport.call("check", level, shape)

    def start_profile(self) -> Call[None]:
        return self.transport.call("start_profile")

    def end_profile(self) -> "Call[list[Recording]]":
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

    def prove(self, whole: Batch, parts: Sequence[Batch]) -> Call[Proof]:
        return self.transport.call("prove", whole, parts)

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


MOST_STARTS = 3  # of a process, before the first step

Stage = Callable[[str], None]
"""Called with what is being started."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Of a cluster's nodes, as they concern actors."""

    joined: tuple[str, ...] = ()  # names for actors that there is room for now
    leaving: tuple[str, ...] = ()  # actors that another node will have: to be emptied first
    notes: tuple[str, ...] = ()  # lines for the user


Progress = Callable[[int, int], None]
"""Called with (completions or sequences done, tokens) while calls run."""


Outcome = tuple[Call[Any], Any, Exception | None]
"""A call that has ended, with what it returned or raised: ProcessLost, ResultLost, or what was
raised there."""


Builders = Mapping[str, Callable[..., Any]]
"""By the kind of a process: what builds its object inside it, of (config, base, plan)."""


class Cluster:
    """The actors and learners of a run, wherever they are. What a class does not override is as it
    is where all of them are in this process, which nothing outlives."""

    is_local = True  # a call runs when its result is asked for, and nothing beside it

    def __init__(
        self, actors: Sequence[ActorHandle] = (), learners: Sequence[LearnerHandle] = ()
    ) -> None:
        self.actors, self.learners = actors, learners
        # called again and again while `gather` waits
        self.meanwhile: Callable[[], None] | None = None

    def gather(
        self,
        calls: Sequence[Call[T]],
        progress: Progress | None = None,
        deadline_s: float | None = None,
    ) -> list[T]:
        """The results of calls, in order; raises what a call raised, as soon as it does, and
        ProcessLost where a process has died, does not answer, or is not done within `deadline_s`.
        `progress` gets (done, tokens) summed over the calls' processes while they run."""
        raise NotImplementedError

    def wait(self, calls: Sequence[Call[Any]]) -> None:
        """Returns when these calls have ended; what came of them stays where it is."""
        self.gather(calls)

    def later(self, call: Call[T]) -> Callable[[], T]:
        """What another thread may call for a call's result; it raises what `gather` would."""
        (value,) = self.gather([call])
        return lambda: value

    def poll(self, calls: Collection[Call[Any]], timeout_s: float) -> list[Outcome]:
        """Those of `calls` that have ended, after at most `timeout_s`; in this process all."""
        values = self.gather(list(calls))
        return [(call, value, None) for call, value in zip(calls, values, strict=True)]

    def silence_s(self, handle: ActorHandle) -> float:
        """For how long a process's watching thread has left a question unanswered."""
        return 0.0

    def answer_s(self) -> float:
        """Seconds that such answers take now, of processes that were asked of late."""
        return 0.0

    def check_learners(self) -> None:
        """Raises ProcessLost where a learner has died since it was last called; often is cheap."""

    def start_allowed_s(self) -> float:
        """How long an actor may take to start, by what those before it have taken."""
        return math.inf

    def changes(self) -> Changes:
        """Which nodes have come or are about to go since it was last asked."""
        return Changes()

    def add_actor(self, name: str, elsewhere: bool = False) -> tuple[ActorHandle, Call[None]]:
        """Begins to start an actor in place of the one of that name, or one that `changes` has
        named; on another node where its own has gone, or if `elsewhere` and there is room. -> (it,
        a call that ends when it is ready). Raises RunError where it cannot be started now."""
        raise RunError(f"{name} cannot be restarted: everything is in one process (cluster local)")

    def remove_actor(self, name: str) -> None:
        """Ends an actor for good."""
        self.add_actor(name)

    def start_again(self, name: str) -> None:
        """Starts a process that has yet to work again, a learner with all the others."""
        self.add_actor(name)

    def restart_learners(self) -> None:
        """Ends all learners, and starts as many."""
        self.add_actor("learners")

    def close(self) -> None:
        """Ends every process that was started."""


@dataclass
class Checks:
    """Of one run. `call` begins them in a process, `problem` judges what came of them."""

    level: str | None = None  # of the sandbox, the same everywhere; None: no programs are run
    base_hash: str = ""  # of the 4-bit base, as the first process has it
    shape: AdapterShape | None = None  # of the run's adapters; None: no canary
    learners_generate: bool = False  # so that they have a canary too
    record: Callable[[dict[str, Any]], None] = lambda found: None  # gets what each has found

    def check_started(self, cluster: Cluster, note: Callable[[str], None]) -> None:
        """`check_all` of a cluster that has just started; from now on every process that draws has
        a canary: see `Engine.canary`. A process that dies or hangs meanwhile is started again,
        which `note` is called with."""
        starts: Counter[str] = Counter()
        while True:
            try:
                (self.shape,) = cluster.gather([cluster.learners[0].adapter_shape()])
                return self.check_all(cluster)
            except ProcessLost as error:
                starts[error.name] += 1
                names = [handle.name for handle in (*cluster.learners, *cluster.actors)]
                if error.name not in names or starts[error.name] == MOST_STARTS:
                    raise
                note(f"{error}: started again")
                cluster.start_again(error.name)

    def call(self, handle: ActorHandle) -> Call[Found]:
        draws = self.learners_generate or not isinstance(handle, LearnerHandle)
        return handle.check(self.level, self.shape if draws else None)

    def problem(self, name: str, found: Found) -> UserError | RunError | None:
        """What is wrong with a process, by its `check`: its sandbox, or another base."""
        refusal, base_hash, changed = found
        self.record({"process": name, "base": base_hash, "changed_by_adapter": changed})
        if refusal:
            return UserError(f"{name}: {refusal}")
        self.base_hash = self.base_hash or base_hash
        if base_hash == self.base_hash:
            return None
        return RunError(
            f"{name} holds a different 4-bit base ({base_hash}) than the other processes "
            f"({self.base_hash}): the same --model must be the same files on every node"
        )

    def check_all(self, cluster: Cluster, handles: Sequence[ActorHandle] | None = None) -> None:
        """Every process at once, learners first, or those of `handles`. Raises what `problem`
        says."""
        handles = [*cluster.learners, *cluster.actors] if handles is None else handles
        answers = cluster.gather([self.call(handle) for handle in handles])
        for handle, found in zip(handles, answers, strict=True):
            if (error := self.problem(handle.name, found)) is not None:
                raise error

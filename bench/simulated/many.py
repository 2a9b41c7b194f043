"""Hundreds of actors in a few Ray processes: what the driver does of them is as in a real run.

Each actor is a simulated one, whole groups at a time: 512 engines that count single tokens would
take more than the cores there are. Its results are of real size and go through Ray's object store.
"""

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from simulated.builders import SimulatedTokenizer
from simulated.engine import FIRST_TOKEN, VOCABULARY
from simulated.learner import LearnerDelays, SimulatedLearner
from unslothrl.actors.actor import ProgressMeter
from unslothrl.cluster.ray_calls import Asked, RayTransport, read
from unslothrl.cluster.ray_cluster import RayCluster
from unslothrl.config.options import Config
from unslothrl.planning.placement import LEARNER, ProcessPlan
from unslothrl.policy_version import Adapter, Loaded
from unslothrl.types import Assignment, Collected, Completion, Group

ACTORS_OF_A_NODE = 8  # so many would share one's memory, in a run of real ones
DRAWN = 256  # completions that the groups of a process are put together from


@dataclass(frozen=True)
class ManyActors:
    """Actors that draw a group in `group_s` seconds, `at_once` groups at a time."""

    group_s: float
    at_once: int
    shortest: int  # completion, tokens
    longest: int
    learner: LearnerDelays
    adapter_bytes: int

    def build_actor(self, config: Config, base: Path, plan: ProcessPlan) -> "GroupActor":
        """See `build.build_actor`."""
        return GroupActor(plan.name, self)

    def build_learner(self, config: Config, base: Path, plan: ProcessPlan) -> SimulatedLearner:
        """See `build.build_learner`."""
        return SimulatedLearner(GroupActor(plan.name, self), self.learner, self.adapter_bytes)


@cache
def drawn(shortest: int, longest: int) -> list[tuple[np.ndarray, np.ndarray, str]]:
    """`DRAWN` times the token ids and log-probabilities of a completion and its text; lengths are
    spread evenly."""
    draw, tokenizer = np.random.default_rng(0), SimulatedTokenizer()
    completions = []
    for length in draw.integers(shortest, longest + 1, DRAWN):
        ids = draw.integers(FIRST_TOKEN, VOCABULARY, length, np.int32)
        logprobs = -draw.standard_exponential(length, np.float32)
        completions.append((ids, logprobs, tokenizer.decode(ids.tolist())))
    return completions


class GroupActor:
    """See `actors.actor.Actor`. Groups go on while nobody collects them."""

    def __init__(self, name: str, simulation: ManyActors):
        self.name, self.simulation = name, simulation
        self.progress = ProgressMeter()
        self.version = -1
        self.queue: deque[Assignment] = deque()
        self.running: list[tuple[float, int, Assignment, int]] = []  # heap: (end, number, ...)
        self.numbers = itertools.count()
        self.done = self.tokens = 0

    def submit(self, assignments: Sequence[Assignment]) -> None:
        known = {a.index for a in self.queue} | {a.index for _, _, a, _ in self.running}
        self.queue += [a for a in assignments if a.index not in known]
        self._begin(time.monotonic())

    def _begin(self, now: float) -> None:
        while self.queue and len(self.running) < self.simulation.at_once:
            entry = (now + self.simulation.group_s, next(self.numbers), self.queue.popleft())
            heapq.heappush(self.running, (*entry, self.version))

    def collect(
        self,
        least: int | None = None,
        seconds: float | None = None,
        assignments: Sequence[Assignment] = (),
        linger_s: float = 0.0,
    ) -> Collected:
        collecting = self.collecting(least, seconds, assignments, linger_s)
        while True:
            try:
                time.sleep(next(collecting))
            except StopIteration as done:
                return done.value

    def collecting(
        self,
        least: int | None = None,
        seconds: float | None = None,
        assignments: Sequence[Assignment] = (),
        linger_s: float = 0.0,
    ) -> Generator[float, None, Collected]:
        """`collect` that yields how long to sleep."""
        self.submit(assignments)
        began = time.monotonic()
        end = float("inf") if seconds is None else began + seconds
        groups: list[tuple[int, Group]] = []
        while self.running:
            if least is not None and len(groups) >= least:
                least, end = None, min(end, time.monotonic() + linger_s)
            at, _, assignment, version = self.running[0]
            if (wait := min(at, end) - time.monotonic()) > 0:
                yield wait
            if at > end:
                break
            heapq.heappop(self.running)
            self._begin(at)
            groups.append((assignment.index, self._group(assignment, version)))
        seconds = time.monotonic() - began
        share = seconds / max(self.simulation.group_s, 1e-3) * self.simulation.at_once
        tokens = round(share * (self.simulation.shortest + self.simulation.longest) / 2)
        completions = sum(len(group.completions) for _, group in groups)
        self.done, self.tokens = self.done + completions, self.tokens + tokens
        self.progress.set(self.done, self.tokens)
        return Collected(
            tuple(groups), 0.0, 0.0, completions=completions, tokens=tokens,
            engine_steps=round(share * self.simulation.longest), engine_s=seconds,
        )  # fmt: skip

    def _group(self, assignment: Assignment, version: int) -> Group:
        """Candidates earn 0 and 1 in turn, so that every group has a signal."""
        of_process = drawn(self.simulation.shortest, self.simulation.longest)
        first = assignment.index * assignment.candidates
        completions = []
        for i in range(assignment.candidates):
            ids, logprobs, text = of_process[(first + i) % DRAWN]
            completion = Completion.drawn(ids, logprobs, "stop", version)
            completions.append(replace(completion, text=text, generator=self.name))
        earned = tuple(float(i % 2) for i in range(assignment.candidates))
        return Group(assignment.task, tuple(completions), {"coin": earned}, earned)

    def abandon(self, indices: Collection[int] | None = None) -> None:
        self.queue = deque(a for a in self.queue if indices is not None and a.index not in indices)
        self.running = [
            entry for entry in self.running if indices is not None and entry[2].index not in indices
        ]
        heapq.heapify(self.running)

    def load(self, adapter: Adapter, fetch_s: float = 0.0) -> Loaded:
        self.version = adapter.version
        return Loaded(len(adapter.weights), fetch_s, 0.0)

    def use_level(self, level: str | None) -> str | None:
        return None

    def fingerprint(self) -> str:
        return "simulated"

    def close(self) -> None:
        self.queue.clear()
        self.running.clear()


class SharedHost:
    """What a shared Ray process runs: many actors in one thread, which sleep side by side.

    Ray may begin calls that wait side by side in another order; here the calls of an actor come
    numbered, and wait for their turn.
    """

    def __init__(self):
        self.targets: dict[str, Any] = {}
        self.turns: dict[str, asyncio.Condition] = {}
        self.next: dict[str, int] = {}

    async def build(self, name: str, build: Callable, *arguments: Any) -> None:
        self.targets[name] = build(*arguments)
        self.turns[name], self.next[name] = asyncio.Condition(), 0

    async def call(self, key: str, asked: Asked, *arrived: Any) -> Any:
        """As `cluster.ray_calls.Host.call`; `key` is "<an actor's name> <its call's number>"."""
        name, number = key.split()
        method, arguments = read(asked, arrived)
        turn, target = self.turns[name], self.targets[name]
        async with turn:
            await turn.wait_for(lambda: self.next[name] == int(number))
        try:
            if method != "collect":
                return getattr(target, method)(*arguments)
            collecting = target.collecting(*arguments)
            while True:
                try:
                    await asyncio.sleep(next(collecting))
                except StopIteration as done:
                    return done.value
        finally:
            async with turn:
                self.next[name] += 1
                turn.notify_all()

    async def ready(self, name: str) -> None:
        pass

    async def progress(self, name: str) -> tuple[int, int]:
        return self.targets[name].progress.state

    async def fetch(self, name: str, refs: Sequence[Any]) -> float:
        """As `cluster.ray_calls.Host.fetch`."""
        started = time.perf_counter()
        for ref in refs:
            await ref
        return time.perf_counter() - started


class OneOfMany:
    """An actor of a shared process, as Ray's handle of a process of its own."""

    def __init__(self, shared: Any, name: str):
        self.shared, self.name = shared, name
        self._actor_id = shared._actor_id
        self.numbers = itertools.count()

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):
            raise AttributeError(method)
        return OneMethod(self, method)


@dataclass(frozen=True)
class OneMethod:
    host: OneOfMany
    method: str

    def remote(self, *arguments: Any) -> Any:
        host = self.host
        key = f"{host.name} {next(host.numbers)}" if self.method == "call" else host.name
        return getattr(host.shared, self.method).remote(key, *arguments)


class SharedCluster(RayCluster):
    """A `RayCluster` whose actors share `processes` Ray processes."""

    PROCESSES = 8
    CALLS = 8  # of an actor that may wait for their turn

    def _launch(self, plan: ProcessPlan) -> Any:
        if plan.kind == LEARNER:
            return super()._launch(plan)
        assert self.nodes is not None
        start = self.nodes.start_of(plan)
        if not hasattr(self, "shared"):
            self.built: list[Any] = []  # where Ray says that an actor has been built
            self.shared = [self._shared_process(start.environment) for _ in range(self.PROCESSES)]
        host = OneOfMany(self.shared[plan.index % self.PROCESSES], plan.name)
        self.built.append(host.build.remote(self.builders.actor, start.config, start.base, plan))
        self.hosts[plan.name] = host
        return host

    def _way(self, name: str) -> RayTransport:
        plan, way = self.plans[name], super()._way(name)
        way.node = f"{plan.kind} {plan.index // ACTORS_OF_A_NODE}"
        return way

    def _wait_ready(self, names: Collection[str]) -> None:
        self.ray.get(getattr(self, "built", []))
        super()._wait_ready(names)

    def _shared_process(self, environment: dict[str, str]) -> Any:
        calls = self.CALLS * -(-self.config.number_of_actors // self.PROCESSES)
        return self.ray.remote(
            num_cpus=0, max_concurrency=calls, runtime_env={"env_vars": environment}
        )(SharedHost).remote()

    def _end(self, name: str) -> None:
        if isinstance(self.hosts.get(name), OneOfMany):
            del self.hosts[name]
        else:
            super()._end(name)

    def close(self) -> None:
        for process in getattr(self, "shared", ()):
            self.ray.kill(process)
        super().close()

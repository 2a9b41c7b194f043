"""An engine without a model: what it draws is random, and how long it takes is set.

Delays are sleeps, so that many engines run on a few cores. What an engine hands over has the size
of the real thing: a token id and a log-probability for every token.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from unslothrl.engines.base import Finished
from unslothrl.records import Completion, Request, seed_of
from unslothrl.weights.adapter import Adapter, AdapterShape

VOCABULARY = 32_000
FIRST_TOKEN = 300  # lower ids are left out: special tokens, and those that tests look for


@dataclass(frozen=True)
class Lengths:
    """Log-normal lengths of completions, tokens; a request's seed decides its own."""

    median: float
    sigma: float = 0.0  # of the logarithm; 0: all have the median

    def of(self, seed: int, most: int) -> int:
        """From 1 to `most`."""
        normal = np.random.default_rng(seed_of(seed, "length")).standard_normal()
        return int(min(most, max(1, round(self.median * np.exp(self.sigma * normal)))))


@dataclass(frozen=True)
class EngineDelays:
    """Seconds that an engine takes; a step is as long as step_s + request_s * running requests."""

    step_s: float
    request_s: float = 0.0
    load_s: float = 0.0
    start_s: float = 0.0
    slowdown: float = 1.0  # of its steps

    def of_step(self, running: int) -> float:
        return self.slowdown * (self.step_s + self.request_s * running)


class Delay:
    """Sleeps. What a sleep takes too long is taken off the next ones, so that many short ones add
    up on a busy machine as well; time between two calls is never made up for."""

    MOST_LATE_S = 0.25

    def __init__(
        self,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.sleep, self.clock, self.late_s = sleep, clock, 0.0

    def __call__(self, seconds: float, began: float | None = None) -> None:
        """Returns `seconds` after `began`, by default now, or at once if that has passed."""
        until = (self.clock() if began is None else began) + seconds - self.late_s
        if (left := until - self.clock()) > 0:
            self.sleep(left)
        self.late_s = min(max(self.clock() - until, 0.0), self.MOST_LATE_S)


@dataclass
class Running:
    """A request in flight."""

    request: Request
    length: int  # tokens that it will have if nothing aborts it
    segments: list[tuple[int, int]]  # (tokens drawn when it began, load), ascending
    began: int | None = None  # the engine's steps when its first was still to come; None: waits
    number: int = 0  # in the order in which requests began

    def drawn(self, steps: int) -> int:
        return 0 if self.began is None else min(self.length, steps - self.began)


@dataclass
class SimulatedEngine:
    """See `engines.base.Engine`. A step costs the same whatever the number of requests: only those
    that finish in it are touched.

    `max_running` requests run at a time. A version whose weights are the number of a token draws
    that token alone.
    """

    delays: EngineDelays
    lengths: Lengths
    max_running: int = 256
    wait: Delay = field(default_factory=Delay)

    def __post_init__(self):
        self.steps = self.sampled_tokens = 0
        self.versions = [-1]  # by load, of which the first is none
        self.favourites: dict[int, int] = {}  # by load
        self.in_use = Counter[int]()  # by load, the requests in flight that are drawn under it
        self.waiting: dict[str, Running] = {}
        self.running: dict[str, Running] = {}
        self.ends: list[tuple[int, int, str]] = []  # heap of (its last step, its number, id)
        self.begun = 0  # requests

    def add(self, request: Request) -> None:
        if request.id in self.waiting or request.id in self.running:
            raise ValueError(f"request {request.id!r} is in flight already")
        length = self.lengths.of(request.seed, request.sampling.max_new_tokens)
        self.waiting[request.id] = Running(request, length, [(0, self.versions_loaded)])
        self.in_use[self.versions_loaded] += 1

    @property
    def version(self) -> int:
        """The newest."""
        return self.versions[-1]

    @property
    def versions_loaded(self) -> int:
        return len(self.versions) - 1

    @property
    def versions_held(self) -> int:
        newest = self.versions_loaded
        return (newest > 0) + sum(0 < load < newest for load in self.in_use)

    @property
    def versions_unloaded(self) -> int:
        return self.versions_loaded - self.versions_held

    def _ends_use(self, load: int) -> None:
        self.in_use[load] -= 1
        if not self.in_use[load]:
            del self.in_use[load]

    def step(self) -> list[Finished]:
        began = self.wait.clock()
        self._admit()
        if not self.running:
            return []
        seconds = self.delays.of_step(len(self.running))
        self.steps += 1
        self.sampled_tokens += len(self.running)
        finished = []
        while self.ends and self.ends[0][0] <= self.steps:
            _, number, id = heapq.heappop(self.ends)
            if id in self.running and self.running[id].number == number:
                finished.append(self._finish(self.running.pop(id)))
        self.wait(seconds, began)
        return finished

    def _admit(self) -> None:
        """Those that wait begin as far as there is room."""
        while self.waiting and len(self.running) < self.max_running:
            id = next(iter(self.waiting))
            running = self.running[id] = self.waiting.pop(id)
            running.began = self.steps
            self.begun += 1
            running.number = self.begun
            heapq.heappush(self.ends, (self.steps + running.length, self.begun, id))

    def _finish(self, running: Running, is_aborted: bool = False) -> Finished:
        request, tokens = running.request, running.drawn(self.steps)
        self._ends_use(running.segments[-1][1])
        draw = np.random.default_rng(request.seed)
        ids = draw.integers(FIRST_TOKEN, VOCABULARY, running.length)[:tokens]
        logprobs = -draw.standard_exponential(running.length, np.float32)[:tokens]
        versions = np.empty(tokens, np.int64)
        for begin, load in running.segments:
            versions[begin:] = self.versions[load]
            if load in self.favourites:
                ids[begin:] = self.favourites[load]
        at_limit = tokens == request.sampling.max_new_tokens
        reason = "abort" if is_aborted else "length" if at_limit else "stop"
        drawn = Completion(ids, logprobs, np.ones(tokens, bool), versions, reason)
        return Finished(request.id, drawn)

    def abort(self, ids: Collection[str]) -> list[Finished]:
        found = [
            requests.pop(id)
            for id in ids
            for requests in (self.waiting, self.running)
            if id in requests
        ]
        return [self._finish(each, is_aborted=True) for each in found]

    def is_finished(self) -> bool:
        return not (self.waiting or self.running)

    def load(self, adapter: Adapter) -> None:
        adapter.verify()
        self.wait(self.delays.load_s)
        self.versions.append(adapter.version)
        if (token := bytes(adapter.weights[:20])).isdigit():
            self.favourites[self.versions_loaded] = int(token)
        for each in (*self.waiting.values(), *self.running.values()):
            if each.request.follows_newest or each.began is None:
                self._ends_use(each.segments[-1][1])
                each.segments.append((each.drawn(self.steps), self.versions_loaded))
                self.in_use[self.versions_loaded] += 1

    def canary(self, shape: AdapterShape) -> None:
        """There is no model that could do without it."""

    def sleep(self) -> None:
        pass

    def fingerprint(self) -> str:
        return "simulated"

    def memory_mb(self) -> float:
        return 0.0

    def close(self) -> None:
        self.waiting.clear()
        self.running.clear()
        self.in_use.clear()

"""What the rollout side asks of an inference engine, and what the engines have in common: a helper
for a closed list of requests, and a request in flight."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from unslothrl.records import Completion, Request, seed_of
from unslothrl.system.memory import peak_memory_mb
from unslothrl.weights.adapter import Adapter, AdapterShape


class Finished(NamedTuple):
    """A request that is done, and what was drawn for it."""

    id: str
    completion: Completion


class Engine(Protocol):
    """Draws completions from the base under one or several adapter versions.

    Every completion carries the log-probabilities of the distribution that was sampled from (after
    temperature, top-p and top-k) and, per token, the version it was drawn under.
    """

    in_flight: dict[str, Any]
    """What was added and is not done, by its id."""

    sampled_tokens: int
    """Since the engine was built; an engine may count a completion's tokens when it is finished."""

    versions_loaded: int
    """Since the engine was built; a number that was loaded twice counts twice."""

    versions_unloaded: int
    """Of those."""

    def add(self, request: Request) -> None:
        """Queues `request`, also while others run; wakes a sleeping engine.

        It is drawn with its own seed. Raises ValueError if its id is in flight already.
        """

    def step(self) -> list[Finished]:
        """Draws at most one token for each running request. -> those that finished in it."""

    def abort(self, ids: Collection[str]) -> list[Finished]:
        """Ends these requests, with what was drawn so far and the finish reason "abort".

        Ids that are not in flight are ignored.
        """

    def is_finished(self) -> bool:
        """Nothing waits or runs."""
        return not self.in_flight

    def load(self, adapter: Adapter) -> None:
        """Makes `adapter` the policy of every later `add`. Raises ValueError if it is damaged,
        AdapterMismatch if what the engine then holds, read back, is not what was published.

        Requests that have begun end under the version that they began with, also where `adapter`
        has the same number; those that still wait begin under this one, with their own seeds.
        Requests with `follows_newest` go on under it from their next token: what they have drawn
        becomes a part of their prompt, with keys and values of this version, and their random
        numbers are new ones. An older version is unloaded when its last request is done.
        """

    def canary(self, shape: AdapterShape) -> int:
        """Shows with random adapters of that shape that requests are drawn under the one that is
        loaded: see `engines.canary`. Before any is loaded; leaves nothing behind. -> how many
        completions have changed. Raises AdapterMismatch."""

    def sleep(self) -> None:
        """Gives the device to others: nothing will be drawn for a while, and a model that is shared
        may be trained. `add` and `step` wake it; what is in flight is kept.
        """

    def fingerprint(self) -> str:
        """A hash of the packed 4-bit weights of the base; "" for a base that is not 4-bit."""

    def memory_mb(self) -> float:
        """Peak memory of this process, in MB: see `memory.peak_memory_mb`."""
        return peak_memory_mb()

    def close(self) -> None:
        """Frees what the engine holds."""


def generate(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """One completion a request, in their order, from an engine that nobody else uses meanwhile.
    Long prompts start first, so that none is left to run alone at the end."""
    for index in longest_first(requests):
        engine.add(replace(requests[index], id=str(index)))
    completions: dict[int, Completion] = {}
    while not engine.is_finished():
        completions |= {int(id): completion for id, completion in engine.step()}
    engine.sleep()
    return [completions[index] for index in range(len(requests))]


def longest_first(requests: Sequence[Request]) -> list[int]:
    """Indices by length of prompt; those of a group stay together."""
    return sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_ids))


NUMBERS = itertools.count(1)
"""Of a process's loads. A version's own number will not do: a learner that restarts publishes
numbers again, with other weights, while completions are in flight under the first ones."""

NO_LOAD = 0  # before any version was loaded


@dataclass
class InFlight:
    """A request in one or several segments: it begins another where it goes on under a newer
    version, which computes all its tokens so far again, as a part of the prompt."""

    request: Request
    load: int  # the engine's load that it is drawn under now
    version: int  # that was loaded by it
    segment: int = 0
    token_ids: tuple[int, ...] = ()  # of the segments before, as the next two
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()

    def left(self) -> Request:
        """What the segment is to draw, with a seed of its own: other random numbers."""
        if not self.segment:
            return self.request
        request, sampling = self.request, self.request.sampling
        left = sampling.max_new_tokens - len(self.token_ids)
        return replace(
            request,
            prompt_ids=request.prompt_ids + self.token_ids,
            seed=seed_of(request.seed, "segment", self.segment),
            sampling=replace(sampling, max_new_tokens=left),
        )

    def extend(self, token_ids: tuple[int, ...], logprobs: tuple[float, ...]) -> None:
        """By what the segment has drawn."""
        self.token_ids += token_ids
        self.logprobs += logprobs
        self.versions += (self.version,) * len(token_ids)

    def go_on(self, load: int, version: int) -> None:
        """In a new segment, or in the first one where nothing has been drawn yet."""
        self.segment += bool(self.token_ids)
        self.load, self.version = load, version

    def completion(self, finish_reason: str) -> Completion:
        drawn = Completion.drawn(self.token_ids, self.logprobs, finish_reason, self.version)
        return replace(drawn, versions=np.array(self.versions))

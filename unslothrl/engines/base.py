"""What the rollout side asks of an inference engine, and a helper for a closed list of requests."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from unslothrl.records import Completion, Request
from unslothrl.weights.adapter import Adapter, AdapterShape

Progress = Callable[[int, int], None]
"""Called with (completions finished, tokens sampled) since the start of one `generate`."""


class Finished(NamedTuple):
    """A request that is done, and what was drawn for it."""

    id: str
    completion: Completion


class Engine(Protocol):
    """Draws completions from the base under one or several adapter versions.

    Every completion carries the log-probabilities of the distribution that was sampled from (after
    temperature, top-p and top-k) and, per token, the version it was drawn under.
    """

    sampled_tokens: int
    """Since the engine was built; an engine may count a completion's tokens when it is finished."""

    versions_loaded: int
    """Since the engine was built; a number that was loaded twice counts twice."""

    versions_unloaded: int
    """Of those."""

    @property
    def versions_held(self) -> int:
        """Loaded and not unloaded yet: the newest, and older ones that requests in flight need."""

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

    def load(self, adapter: Adapter) -> None:
        """Makes `adapter` the policy of every later `add`. Raises ValueError if it is damaged,
        AdapterMismatch if what the engine then holds, read back, is not what was published.

        Requests that have begun end under the version that they began with, also where `adapter`
        has the same number; those that still wait begin under this one, with their own seeds.
        Requests with `follows_newest` go on under it from their next token: what they have drawn
        becomes a part of their prompt, with keys and values of this version, and their random
        numbers are new ones. An older version is unloaded when its last request is done.
        """

    def canary(self, shape: AdapterShape) -> None:
        """Shows with random adapters of that shape that requests are drawn under the one that is
        loaded: see `engines.canary`. Before any is loaded; leaves nothing behind. Raises
        AdapterMismatch."""

    def sleep(self) -> None:
        """Gives the device to others: nothing will be drawn for a while, and a model that is shared
        may be trained. `add` and `step` wake it; what is in flight is kept.
        """

    def fingerprint(self) -> str:
        """A hash of the packed 4-bit weights of the base; "" for a base that is not 4-bit."""

    def memory_mb(self) -> float:
        """Peak memory of this process, in MB: see `memory.peak_memory_mb`."""

    def close(self) -> None:
        """Frees what the engine holds."""


def generate(
    engine: Engine,
    requests: Sequence[Request],
    progress: Progress | None = None,
    finished: Callable[[int, Completion], None] | None = None,
) -> list[Completion]:
    """One completion a request, in their order, from an engine that nobody else uses meanwhile.

    Requests are known by their place in the list; their ids play no part. `finished` gets that
    place and the completion as soon as it is there. Long prompts start first, so that none is left
    to run alone at the end.
    """
    tokens_before = engine.sampled_tokens
    for index in longest_first(requests):
        engine.add(replace(requests[index], id=str(index)))
    completions: dict[int, Completion] = {}
    while not engine.is_finished():
        for id, completion in engine.step():
            completions[int(id)] = completion
            if finished is not None:
                finished(int(id), completion)
        if progress is not None:
            progress(len(completions), engine.sampled_tokens - tokens_before)
    engine.sleep()
    return [completions[index] for index in range(len(requests))]


def longest_first(requests: Sequence[Request]) -> list[int]:
    """Indices by length of prompt; those of a group stay together."""
    return sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_ids))

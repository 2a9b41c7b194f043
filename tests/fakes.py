"""Hand-made records."""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from unslothrl.engines.base import Finished
from unslothrl.types import Adapter, Completion, Group, Request, Task


def task(name: str, prompt_ids: Sequence[int] = (1, 2)) -> Task:
    return Task(name, f"problem {name}", "7", f"prompt {name}", tuple(prompt_ids))


def completion(
    length: int = 3, version: int = 0, text: str = "", finish_reason: str = "stop"
) -> Completion:
    ids = tuple(range(10, 10 + length))
    drawn = Completion.drawn(ids, (-0.5,) * length, finish_reason, version)
    return replace(drawn, text=text, generator="actor-0")


class FakeEngine:
    """An `engines.base.Engine` without a model, which draws uniformly from 300 tokens.

    Token 2 ends a completion, `max_running` requests run at a time. A version that is named in
    `favourites` draws that token alone.
    """

    VOCABULARY, STOP = 300, 2

    def __init__(self, max_running: int = 256, favourites: Mapping[int, int] | None = None):
        self.max_running, self.favourites = max_running, favourites or {}
        self.version, self.sampled_tokens, self.is_asleep = -1, 0, False
        self.in_flight: dict[str, FakeRequest] = {}

    def add(self, request: Request) -> None:
        if request.id in self.in_flight:
            raise ValueError(f"request {request.id!r} is in flight already")
        self.is_asleep = False
        self.in_flight[request.id] = FakeRequest(request, self.version)

    def step(self) -> list[Finished]:
        finished = []
        for running in list(self.in_flight.values())[: self.max_running]:
            version = self.version if running.request.follows_newest else running.version
            random_token = running.random.randrange(self.VOCABULARY)
            running.token_ids.append(self.favourites.get(version, random_token))
            running.versions.append(version)
            self.sampled_tokens += 1
            if running.token_ids[-1] == self.STOP:
                finished.append(self._finish(running, "stop"))
            elif len(running.token_ids) == running.request.sampling.max_new_tokens:
                finished.append(self._finish(running, "length"))
        return finished

    def _finish(self, running: "FakeRequest", finish_reason: str) -> Finished:
        del self.in_flight[running.request.id]
        ids, tokens = tuple(running.token_ids), len(running.token_ids)
        logprobs = (-math.log(self.VOCABULARY),) * tokens
        versions = tuple(running.versions)
        drawn = Completion(ids, logprobs, (True,) * tokens, versions, finish_reason)
        return Finished(running.request.id, drawn)

    def abort(self, ids: Collection[str]) -> list[Finished]:
        return [self._finish(self.in_flight[id], "abort") for id in ids if id in self.in_flight]

    def is_finished(self) -> bool:
        return not self.in_flight

    def load(self, adapter: Adapter) -> None:
        adapter.verify()
        self.version = adapter.version

    def sleep(self) -> None:
        self.is_asleep = True

    def fingerprint(self) -> str:
        return ""

    def memory_mb(self) -> float:
        return 1.0

    def close(self) -> None:
        self.in_flight.clear()


class FakeRequest:
    """What a `FakeEngine` has drawn for a request so far."""

    def __init__(self, request: Request, version: int):
        self.request, self.version = request, version
        self.random = random.Random(request.seed)
        self.token_ids: list[int] = []
        self.versions: list[int] = []


def completed(
    text: str, length: int = 1, answer: str = "", extra=None, prompt: str = "", problem: str = ""
) -> tuple[Task, Completion]:
    """A text of `length` tokens to be scored, and its task."""
    task = Task("0", problem, answer, prompt, (), extra or {})
    return task, replace(completion(length), text=text)


def group(
    name: str,
    rewards: Sequence[float],
    lengths: Sequence[int] | None = None,
    truncated: Sequence[int] = (),
) -> Group:
    """`truncated` has the indices of the candidates that were cut off."""
    lengths = lengths or [3] * len(rewards)
    return Group(
        task(name),
        tuple(
            completion(length, finish_reason="length" if i in truncated else "stop")
            for i, length in enumerate(lengths)
        ),
        {"accuracy": tuple(rewards)},
        tuple(rewards),
    )

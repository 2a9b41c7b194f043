"""Hand-made records, and small stand-ins that keep what was asked of them."""

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unslothrl.engines.base import Finished
from unslothrl.records import (
    Assignment,
    Batch,
    Completion,
    Group,
    Proof,
    Request,
    Sample,
    Sampling,
    Task,
    Update,
)
from unslothrl.weights.adapter import Adapter, AdapterShape

NOTHING_DONE: dict[str, Any] = {  # by an actor while its groups were collected
    **dict.fromkeys(("completions", "tokens", "reward_s", "engine_steps", "engine_s"), 0),
    "memory_mb": 1.0,
    "versions": (0, 0),
}


def task(name: str, prompt_ids: Sequence[int] = (1, 2)) -> Task:
    return Task(name, f"problem {name}", "7", f"prompt {name}", tuple(prompt_ids))


def draw_groups(
    actor: Any, tasks: Sequence[Task], candidates: int, sampling: Sampling, seed: tuple
) -> list[Group]:
    """What an actor draws of tasks, a group each, in order."""
    assignments = [Assignment(i, each, candidates, sampling, seed) for i, each in enumerate(tasks)]
    return [group for _, group in sorted(actor.collect(assignments=assignments)[0])]


def completion(
    length: int = 3, version: int = 0, text: str = "", finish_reason: str = "stop"
) -> Completion:
    ids = tuple(range(10, 10 + length))
    drawn = Completion.drawn(ids, (-0.5,) * length, finish_reason, version)
    return replace(drawn, text=text, generator="actor-0")


class FakeEngine:
    """An `engines.base.Engine` without a model, which draws uniformly from 300 tokens.

    Token 2 ends a completion, `max_running` requests run at a time. A version whose weights are
    the number of a token draws that token alone.
    """

    VOCABULARY, STOP = 300, 2

    def __init__(self, max_running: int = 256):
        self.max_running = max_running
        self.favourites: dict[int, int] = {}  # by load
        self.version, self.sampled_tokens, self.is_asleep = -1, 0, False
        self.versions_loaded, self.older = 0, set[int]()  # loads that are held beside the newest
        self.in_flight: dict[str, FakeRequest] = {}

    def add(self, request: Request) -> None:
        if request.id in self.in_flight:
            raise ValueError(f"request {request.id!r} is in flight already")
        self.is_asleep = False
        self.in_flight[request.id] = FakeRequest(request, self.versions_loaded, self.version)

    def step(self) -> list[Finished]:
        finished = []
        for running in list(self.in_flight.values())[: self.max_running]:
            random_token = running.random.randrange(self.VOCABULARY)
            running.token_ids.append(self.favourites.get(running.load, random_token))
            running.versions.append(running.version)
            self.sampled_tokens += 1
            if running.token_ids[-1] == self.STOP:
                finished.append(self._finish(running, "stop"))
            elif len(running.token_ids) == running.request.sampling.max_new_tokens:
                finished.append(self._finish(running, "length"))
        self._unload_unused()
        return finished

    def _finish(self, running: "FakeRequest", finish_reason: str) -> Finished:
        del self.in_flight[running.request.id]
        ids, tokens = tuple(running.token_ids), len(running.token_ids)
        logprobs = (-math.log(self.VOCABULARY),) * tokens
        versions = tuple(running.versions)
        drawn = Completion(ids, logprobs, (True,) * tokens, versions, finish_reason)
        return Finished(running.request.id, drawn)

    def abort(self, ids: Collection[str]) -> list[Finished]:
        known = [self.in_flight[id] for id in ids if id in self.in_flight]
        finished = [self._finish(running, "abort") for running in known]
        self._unload_unused()
        return finished

    def is_finished(self) -> bool:
        return not self.in_flight

    def load(self, adapter: Adapter) -> None:
        adapter.verify()
        self.older |= {self.versions_loaded} - {0}
        self.versions_loaded += 1
        self.version = adapter.version
        if bytes(adapter.weights).isdigit():
            self.favourites[self.versions_loaded] = int(adapter.weights)
        for running in self.in_flight.values():
            if running.request.follows_newest or not running.token_ids:
                running.load, running.version = self.versions_loaded, adapter.version
        self._unload_unused()

    def _unload_unused(self) -> None:
        self.older &= {running.load for running in self.in_flight.values()}

    @property
    def versions_held(self) -> int:
        return len(self.older) + (self.versions_loaded > 0)

    @property
    def versions_unloaded(self) -> int:
        return self.versions_loaded - self.versions_held

    def canary(self, shape: AdapterShape) -> int:
        """There is no model that could do without it."""
        return 8

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

    def __init__(self, request: Request, load: int, version: int):
        self.request, self.load, self.version = request, load, version
        self.random = random.Random(request.seed)
        self.token_ids: list[int] = []
        self.versions: list[int] = []


def samples_of(group: Group) -> list[list[Sample]]:
    """[candidates][sequences]"""
    return [
        [Sample.of(*sequence) for sequence in completion.sequences(group.task)]
        for completion in group.completions
    ]


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


class FakeGenerator:
    """An actor without an engine: completions of three tokens, right where `is_right` says so."""

    def __init__(self, name: str, is_right: Callable[[Assignment, int], bool]):
        self.name, self.is_right = name, is_right
        self.version = -1
        self.submitted: list[Assignment] = []
        self.calls: list[str] = []

    def load(self, adapter: Adapter, fetch_s: float = 0.0) -> dict[str, float]:
        adapter.verify()
        self.calls.append(f"load {adapter.version}")
        self.version = adapter.version
        return {"bytes": len(adapter.weights), "fetch_s": fetch_s, "load_s": 0.0}

    def submit(self, assignments: Sequence[Assignment]) -> None:
        self.submitted += assignments

    def collect(
        self,
        least: int | None = None,
        seconds: float | None = None,
        assignments: Sequence[Assignment] = (),
    ) -> tuple[list[tuple[int, Group]], dict[str, Any]]:
        self.submit(assignments)
        self.calls.append(f"collect {len(self.submitted)}")
        groups = []
        for assignment in self.submitted:
            earned = tuple(
                float(self.is_right(assignment, candidate))
                for candidate in range(assignment.candidates)
            )
            drawn = replace(completion(version=self.version), generator=self.name)
            completions = (drawn,) * len(earned)
            found = Group(assignment.task, completions, {"accuracy": earned}, earned)
            groups.append((assignment.index, found))
        self.submitted = []
        return groups[::-1], NOTHING_DONE

    def check(self, level: str | None, shape: AdapterShape | None = None) -> tuple:
        self.calls += ["canary"] * (shape is not None)
        return "", "base", 8

    def close(self) -> None:
        self.calls.append("close")


class FakeLearner(FakeGenerator):
    """A learner whose only weight is the number of steps that it has taken."""

    def __init__(self, name: str, is_right: Callable[[Assignment, int], bool]):
        super().__init__(name, is_right)
        self.steps = 0
        self.batches: list[Batch] = []
        self.losses: list[float] = []  # of coming updates; 0.5 where there is none

    def measure(self, samples: Sequence[Sample], reference: bool) -> list[dict[str, Any]]:
        self.calls.append(f"measure {len(samples)}")
        names = ("logprobs", "reference") if reference else ("logprobs",)
        return [dict.fromkeys(names, np.zeros(s.tokens, np.float32)) for s in samples]

    def prove(self, whole: Batch, parts: Sequence[Batch]) -> Proof:
        sources = [(s.generator, s.policy_version, s.tokens) for s in whole.samples]
        tokens = np.zeros(sum(sample.tokens for sample in whole.samples))
        return Proof(Update(difference=tokens, sources=sources), 0.0, 1e-3, frozenset())

    def update(
        self,
        batch: Batch,
        lrs: dict[str, float],
        train_policy: bool,
        deadline_s: float | None = None,
    ) -> Update:
        self.batches.append(batch)
        loss = self.losses.pop(0) if self.losses else 0.5
        skipped = not np.isfinite(loss)
        self.steps += not skipped
        tokens = np.zeros(sum(sample.tokens for sample in batch.samples))
        return Update(
            loss,
            difference=tokens,
            sources=[(s.generator, s.policy_version, s.tokens) for s in batch.samples],
            kl=np.zeros(1),
            grad_norm=1.0,
            skipped=skipped,
            memory_mb=1.0,
        )

    @staticmethod
    def update_in_turn(learners, parts, *arguments) -> list[Update]:
        return [
            learner.update(part, *arguments) for learner, part in zip(learners, parts, strict=True)
        ]

    def publish(self, version: int) -> Adapter:
        self.calls.append(f"publish {version}")
        self.published = Adapter.of(version, b"%d" % self.steps, "{}")
        return self.published

    def publish_again(self) -> Adapter:
        self.calls.append("publish again")
        return self.published

    def adapter_shape(self) -> AdapterShape:
        return AdapterShape((), "{}")

    def make_room(self) -> None:
        self.calls.append("make_room")

    def save_state(self) -> bytes:
        return b"%d" % self.steps

    def load_state(self, data: bytes) -> None:
        self.steps = int(data)


class FakeTasks:
    """Tasks "0", "1", ... without end."""

    def draw(self, position: int, count: int) -> tuple[list[Task], int]:
        return [task(str(position + i)) for i in range(count)], position + count


class FakeView:
    """A terminal that keeps what it was told."""

    def __init__(self):
        self.notes: list[str] = []
        self.steps: list[dict] = []

    def note(self, line: str) -> None:
        self.notes.append(line)

    def step(self, metrics: dict, step: int, total: int) -> None:
        self.steps.append(metrics)

    def sample(self, groups: Sequence[Group]) -> None:
        pass

    def progress(self, kind: str, done: int, total: int, tokens: int) -> None:
        pass

    def evaluation(self, step: int, metrics: dict, drawn=None) -> None:
        pass

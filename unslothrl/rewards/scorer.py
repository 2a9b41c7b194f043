"""Scores completions by the rewards of a run."""

import functools
import importlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unslothrl import rewards, sandbox
from unslothrl.errors import UserError
from unslothrl.rewards import overlong, own
from unslothrl.rewards.calls import Call, Result
from unslothrl.rewards.code import WALL_OF_CPU, program
from unslothrl.rewards.loading import START_S
from unslothrl.rewards.overlong import Overlong
from unslothrl.rewards.processes import (
    DEADLINE_S,
    MAX_QUEUED,
    MEMORY_MB,
    TOO_LONG,
    Closed,
    ProcessPool,
)
from unslothrl.types import Completion, Failure, Task

GRACE_S = 10.0  # that a worker has to report on what it has itself given up
TRIALS_S = len(sandbox.LEVELS) * sandbox.START_S + GRACE_S  # to choose a level
AT_ONCE = 64  # calls of an async function


Scorable = tuple[Task, Completion]
"""A completion whose text is set, and the task that it answers."""


@dataclass
class Scored:
    rewards: dict[str, list[float]]  # name -> [completions], weights applied
    scores: list[float]  # [completions], what is reported as correct, without its weight
    seconds: list[float]  # [completions], for all its rewards
    failures: list[Failure] = field(default_factory=list)


class Scorer:
    """The first reward is what is reported as correct. Processes start when first needed."""

    def __init__(
        self,
        chosen: Sequence[rewards.Chosen],
        punish: Overlong | None = None,
        deadline_s: float = DEADLINE_S,
        allow_unsandboxed: bool = False,
    ):
        self.chosen, self.punish, self.deadline_s = list(chosen), punish, deadline_s
        self.allow_unsandboxed = allow_unsandboxed
        self.level: str | None = None  # of the sandbox that programs run in; None: not chosen yet
        self._pools: dict[int | None, ProcessPool] = {}  # by the memory of a process
        self._closed = False
        self._lock = threading.Lock()  # `close` may come from another thread

    @property
    def takes_all(self) -> bool:
        """Whether a reward wants all completions of a rollout in one call."""
        return any(one.own is not None and one.own.is_batch for one in self.chosen)

    @property
    def workers(self) -> ProcessPool:
        """For what this package does with the model's text, in little memory."""
        return self._pool(MEMORY_MB)

    @property
    def own_workers(self) -> ProcessPool:
        """For functions of the user's own, which may load what they like."""
        return self._pool(None)

    def _pool(self, memory_mb: int | None) -> ProcessPool:
        with self._lock:
            if self._closed:
                raise Closed
            if memory_mb not in self._pools:
                count = max(1, len(os.sched_getaffinity(0)))
                self._pools[memory_mb] = ProcessPool(count, self.deadline_s, memory_mb)
            return self._pools[memory_mb]

    def check(self) -> None:
        """Loads the user's functions and chooses the sandbox, before a run. UserError."""
        for one in self.chosen:
            if one.runs == rewards.OWN:
                call = Call("unslothrl.rewards.own:check", (one.function,), deadline_s=START_S)
                (result,) = self.own_workers.call([call])
                if result.error is not None:
                    raise UserError(f"reward {one.function}: {result.error}: fix it")
            elif one.runs == rewards.PROGRAMS:
                self.level = self.level or self._choose_level()

    def _choose_level(self) -> str:
        call = Call("unslothrl.rewards.code:choose", (self.allow_unsandboxed,))
        return self._try_sandbox(call)

    def use_level(self, level: str | None) -> None:
        """Runs programs at the level that the run has chosen, wherever it did so; None where it
        runs none. UserError where it does not work here: no lower one is taken."""
        if level is not None:
            self._try_sandbox(Call("unslothrl.rewards.code:require", (level,)))
            self.level = level

    def _try_sandbox(self, call: Call) -> Any:
        (result,) = self.workers.call([replace(call, deadline_s=TRIALS_S)])
        if result.error is not None:
            raise UserError(result.error.removeprefix("UserError: "))
        return result.value

    def score(self, completed: Sequence[Scorable]) -> Scored:
        """All rewards of all completions, in order."""
        found: dict[str, list[float]] = {}
        failures: list[Failure] = []
        scores: list[float] = []
        seconds = [0.0] * len(completed)
        for one in self.chosen:
            results = [as_number(result) for result in self._results(one, completed)]
            values = [0.0 if r.error is not None else r.value for r in results]
            found[one.name] = [one.weight * float(part(value, "reward")) for value in values]
            failures += [
                Failure(one.name, result.error, what.text, index, is_late(result.error))
                for index, (result, (_, what)) in enumerate(zip(results, completed, strict=True))
                if result.error is not None
            ]
            scores = scores or [float(part(value, "score")) for value in values]
            seconds = [s + result.seconds for s, result in zip(seconds, results, strict=True)]
        if self.punish is not None:
            found[overlong.NAME] = [self.punish(len(what.token_ids)) for _, what in completed]
        return Scored(found, scores, seconds, failures)

    def _results(self, chosen: rewards.Chosen, completed: Sequence[Scorable]) -> list[Result]:
        """One for each completion."""
        if chosen.runs == rewards.HERE:
            function = imported(chosen.function)
            return [here(function, given(chosen, *pair)) for pair in completed]
        if chosen.runs == rewards.WORKER:
            calls = [Call(chosen.function, given(chosen, *pair)) for pair in completed]
            return self.workers.call(calls, MAX_QUEUED)
        if chosen.runs == rewards.PROGRAMS:
            return self._programs(chosen, completed)
        assert chosen.own is not None
        if chosen.own.is_batch:
            return self._for_all(chosen, chosen.own, completed)
        if chosen.own.is_async:
            return self._together(chosen, chosen.own, completed)
        return self.own_workers.call(
            [
                Call(chosen.function, (one.text,), chosen.own.named(known(task)), may_load=True)
                for task, one in completed
            ]
        )

    def _programs(self, chosen: rewards.Chosen, completed: Sequence[Scorable]) -> list[Result]:
        """Every test of every program is a call; a program's first failure ends its group."""
        calls: list[Call] = []
        self.level = self.level or self._choose_level()
        deadline_s = WALL_OF_CPU * self.deadline_s + sandbox.START_S + GRACE_S
        for group, (task, one) in enumerate(completed):
            text, tests = program(one.text), task.extra["tests"]
            for pair in zip(tests["inputs"], tests["outputs"], strict=True) if text else ():
                more = (self.deadline_s, self.level)
                arguments = (text, tests["fn_name"], *pair, *more)
                calls.append(Call(chosen.function, arguments, {}, group, deadline_s))
        by_group: dict[int, list[Result]] = {group: [] for group in range(len(completed))}
        for call, result in zip(calls, self.workers.call(calls), strict=True):
            assert call.group is not None
            if not result.skipped:
                by_group[call.group].append(result)
        return [joined(results) for results in by_group.values()]

    def _for_all(
        self, chosen: rewards.Chosen, signature: own.Signature, completed: Sequence[Scorable]
    ) -> list[Result]:
        """One call for all; it has `deadline_s` for the whole."""
        named = signature.named_for_all([known(task) for task, _ in completed])
        named[own.ALL] = signature.completions([one.text for _, one in completed])
        (result,) = self.own_workers.call([Call(chosen.function, (), named, may_load=True)])
        share = result.seconds / max(1, len(completed))
        values, error = result.value, result.error
        if error is None and (not isinstance(values, list) or len(values) != len(completed)):
            error = f"returned no list of {len(completed)}: {values!r:.60}"
        if error is not None:
            return [Result(None, error, share) for _ in completed]
        return [Result(value, None, share) for value in values]

    def _together(
        self, chosen: rewards.Chosen, signature: own.Signature, completed: Sequence[Scorable]
    ) -> list[Result]:
        """Async calls, `AT_ONCE` of them in a worker at the same time."""
        pairs = [(one.text, signature.named(known(task))) for task, one in completed]
        parts = [pairs[i : i + AT_ONCE] for i in range(0, len(pairs), AT_ONCE)]
        calls = [
            Call(
                "unslothrl.rewards.own:together",
                (chosen.function, self.deadline_s, part),
                deadline_s=self.deadline_s + START_S,
            )
            for part in parts
        ]
        found: list[Result] = []
        for part, result in zip(parts, self.own_workers.call(calls), strict=True):
            each = result.value or [[None, result.error]] * len(part)
            found += [Result(value, error, result.seconds / len(part)) for value, error in each]
        return found

    def close(self) -> None:
        """Ends the processes, for good; `score` in another thread raises Closed."""
        with self._lock:
            self._closed = True
            for pool in self._pools.values():
                pool.close()


def given(chosen: rewards.Chosen, task: Task, completion: Completion) -> tuple:
    """What a reward of this package is called with."""
    if "answer" in chosen.needs:
        return (completion.text, *(task.extra.get("answers") or (task.answer,)))
    if "numbers" in chosen.needs:
        return (completion.text, task.extra["numbers"], task.extra["target"])
    return (completion.text,)


def known(task: Task) -> own.Known:
    """What a function of the user's own may ask for by name."""
    return own.Known(task.answer, task.prompt, task.extra, task.problem)


def is_late(reason: str) -> bool:
    return reason.startswith(TOO_LONG)


@functools.cache
def imported(function: str) -> Callable[..., float]:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def here(function: Callable[..., float], arguments: tuple) -> Result:
    started = time.perf_counter()
    value = function(*arguments)
    return Result(value, None, time.perf_counter() - started)


def joined(results: Sequence[Result]) -> Result:
    """A program's tests as one: it is right if there are some and all were passed."""
    seconds = sum(result.seconds for result in results)
    if any(result.value is False for result in results) or not results:
        return Result(0.0, None, seconds)
    error = next((result.error for result in results if result.error is not None), None)
    return Result(1.0 if error is None else None, error, seconds)


def part(value: float | dict[str, float], name: str) -> float:
    """The reward or the reported score of what a function returned."""
    return value[name] if isinstance(value, dict) else value


def as_number(result: Result) -> Result:
    """A value that is neither a number nor a reward and a score is a failure too."""
    value = result.value
    if result.error is not None or is_number(value):
        return result
    if isinstance(value, dict) and is_number(value.get("reward")):
        both = {"reward": value["reward"], "score": value.get("score", value["reward"])}
        if is_number(both["score"]):
            return replace(result, value=both)
    return replace(result, error=f"returned no number: {value!r:.60}")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e12

"""Scores completions by the rewards of a run."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from unslothrl import rewards
from unslothrl.rewards import overlong
from unslothrl.rewards.overlong import Overlong
from unslothrl.rewards.workers import DEADLINE_S, Call, Result, Workers


@dataclass(frozen=True)
class Completed:
    """What is scored: a completion's text and length in tokens, and the gold answer."""

    text: str
    length: int
    answer: str


@dataclass(frozen=True)
class Failure:
    """A reward that could not be computed; it counts as 0."""

    reward: str
    reason: str
    text: str  # the completion


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
    ):
        self.chosen, self.punish, self.deadline_s = list(chosen), punish, deadline_s
        self.workers: Workers | None = None

    def score(self, completed: Sequence[Completed]) -> Scored:
        """All rewards of all completions, in order."""
        found: dict[str, list[float]] = {}
        failures: list[Failure] = []
        scores: list[float] = []
        seconds = [0.0] * len(completed)
        for one in self.chosen:
            results = self._results(one, completed)
            values = [0.0 if r.error is not None else float(r.value) for r in results]
            found[one.name] = [one.weight * value for value in values]
            failures += [
                Failure(one.name, result.error, what.text)
                for result, what in zip(results, completed, strict=True)
                if result.error is not None
            ]
            scores = scores or values
            seconds = [s + result.seconds for s, result in zip(seconds, results, strict=True)]
        if self.punish is not None:
            found[overlong.NAME] = [self.punish(one.length) for one in completed]
        return Scored(found, scores, seconds, failures)

    def _results(self, chosen: rewards.Chosen, completed: Sequence[Completed]) -> list[Result]:
        if chosen.function is None:
            return [inline(rewards.INLINE[chosen.name], one) for one in completed]
        if self.workers is None:
            self.workers = Workers(max(1, len(os.sched_getaffinity(0))), self.deadline_s)
        calls = [Call(chosen.function, (one.text, one.answer)) for one in completed]
        return [checked(result) for result in self.workers.call(calls)]

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()
            self.workers = None


def inline(reward: rewards.Reward, one: Completed) -> Result:
    started = time.perf_counter()
    value = reward(one.text, one.answer)
    return Result(value, None, time.perf_counter() - started)


def checked(result: Result) -> Result:
    """A value that is no number is a failure too."""
    value = result.value
    if result.error is not None or (isinstance(value, int | float) and abs(value) < 1e12):
        return result
    return replace(result, error=f"returned {value!r:.60}, which is not a number")

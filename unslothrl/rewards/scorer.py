"""Scores completions by the rewards of a run, and reports those that could not be computed."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from unslothrl.errors import UserError, WillRepeat
from unslothrl.records import (
    FROM_THE_ENVIRONMENT,
    MOST_REWARD,
    Completion,
    Failure,
    Group,
    Scorable,
    Task,
)
from unslothrl.rewards import Chosen
from unslothrl.rewards.functions import reason
from unslothrl.rewards.processes import (
    CHECK,
    DEADLINE_S,
    START_S,
    TOO_LONG,
    ProcessPool,
    Result,
    RewardCall,
)
from unslothrl.rewards.reward import (
    IN_LEARNER,
    IN_PLACE,
    IN_PROCESS,
    IN_SANDBOX,
    OVERLONG,
    WALL_OF_CPU,
    Reward,
)

GRACE_S = 10.0  # that a process has to report on what it has itself given up
MOST_REPORTED = 20  # kinds of failures; further ones are only counted
AT_ONCE = 64  # calls of an async function, or short ones, that a process is given
EACH, TOGETHER = "unslothrl.rewards.functions:each", "unslothrl.rewards.functions:together"


@dataclass
class Scored:
    rewards: dict[str, list[float]]  # name -> [completions], weights applied
    scores: list[float]  # [completions], what is reported as correct, without its weight
    seconds: list[float]  # [completions], for all its rewards
    failures: list[Failure] = field(default_factory=list)


class Scorer:
    """Scores by `chosen`, the first of which is what is reported as correct."""

    def __init__(
        self,
        chosen: Sequence[Chosen],
        punish: Callable[[int], float] | None = None,
        deadline_s: float = DEADLINE_S,
        allow_unsandboxed: bool = False,
        shows_prints: bool = False,
        steps: int = 0,
    ):
        """`punish`: of a completion's length. `shows_prints`: what custom functions print goes to
        this process's stderr. `steps`: the optimiser steps of the run, for functions that ask."""
        self.chosen, self.punish, self.deadline_s = list(chosen), punish, deadline_s
        self.allow_unsandboxed, self.steps = allow_unsandboxed, steps
        self.level: str | None = None  # of the sandbox that programs run in; None: not chosen yet
        # For what this package does with the model's text, in little memory; and for custom
        # functions, which may load what they like.
        self.processes = ProcessPool(0, deadline_s)
        self.custom_processes = ProcessPool(0, deadline_s, None, shows_prints)

    @property
    def takes_all(self) -> bool:
        """Whether a reward wants all completions of a rollout in one call."""
        return any(each.signature is not None and each.signature.is_batch for each in self.chosen)

    def check(self) -> None:
        """Loads custom functions and chooses the sandbox, before a run. UserError."""
        for each in self.chosen:
            if each.signature is not None:
                call = RewardCall(CHECK, (each.function,), deadline_s=START_S)
                (result,) = self.custom_processes.call([call])
                if result.error is not None:
                    raise UserError(f"reward {each.function}: {result.error}: fix it")
            elif each.runs == IN_SANDBOX:
                self.level = self.level or self._try_sandbox("choose", self.allow_unsandboxed)

    def use_level(self, level: str | None) -> None:
        """Runs programs at the level that the run has chosen, wherever it did so; None where it
        runs none. UserError where it does not work here: no lower one is taken."""
        if level is not None:
            self._try_sandbox("require", level)
            self.level = level

    def _try_sandbox(self, function: str, argument: Any) -> Any:
        from unslothrl.sandbox import levels  # of runs with programs alone

        deadline_s = len(levels.LEVELS) * levels.START_S + GRACE_S
        call = RewardCall(f"unslothrl.sandbox:{function}", (argument,), deadline_s=deadline_s)
        (result,) = self.processes.call([call])
        if result.error is not None:
            raise UserError(result.error.removeprefix("UserError: "))
        return result.value

    def score(self, completed: Sequence[Scorable]) -> Scored:
        """All rewards of all completions, in order."""
        earned: dict[str, list[float]] = {}
        failures: list[Failure] = []
        scores = [] if self.chosen else [0.0] * len(completed)
        seconds = [0.0] * len(completed)
        for chosen in self.chosen:
            results = [graded(result) for result in self.results(chosen, completed)]
            earned[chosen.name] = [chosen.weight * result.value["reward"] for result in results]
            failures += [
                Failure(chosen.name, result.error, done.text, index, is_late(result.error))
                for index, (result, (_, done)) in enumerate(zip(results, completed, strict=True))
                if result.error is not None
            ]
            scores = scores or [result.value["score"] for result in results]
            seconds = [s + result.seconds for s, result in zip(seconds, results, strict=True)]
        if self.punish is not None:
            of_each = [done.sequences(task) for task, done in completed]
            lengths = [sum(len(each.token_ids) for _, each in episode) for episode in of_each]
            earned[OVERLONG] = [self.punish(length) for length in lengths]
        return Scored(earned, scores, seconds, failures)

    def results(self, chosen: Chosen, completed: Sequence[Scorable]) -> list[Result]:
        if chosen.signature is not None:
            return self._custom(chosen, completed)
        if chosen.runs == IN_LEARNER:  # a learner says it later
            return [Result(0.0, None, 0.0)] * len(completed)
        assert chosen.reward is not None
        given = [arguments(chosen.reward, *pair) for pair in completed]
        if chosen.runs == IN_PLACE:
            return [in_place(chosen.reward, values) for values in given]
        if chosen.runs == IN_PROCESS:
            return self._short(chosen.function, given)
        return self._programs(chosen.reward, given)

    def _short(self, function: str, given: Sequence[tuple]) -> list[Result]:
        """Calls that take little time; a failed one is made again by itself."""
        results = together(self.processes, EACH, function, given, self.deadline_s)
        failed = [i for i, result in enumerate(results) if result.error is not None]
        again = self.processes.call([RewardCall(function, given[i]) for i in failed])
        for i, result in zip(failed, again, strict=True):
            results[i] = result
        return results

    def _programs(self, reward: Reward, given: Sequence[tuple]) -> list[Result]:
        """Each trial of each completion is a call; a completion's first failure ends its trials."""
        from unslothrl.sandbox import levels

        assert reward.trials is not None
        self.level = self.level or self._try_sandbox("choose", self.allow_unsandboxed)
        limits = (self.deadline_s, self.level)
        deadline_s = WALL_OF_CPU * self.deadline_s + levels.START_S + GRACE_S
        calls = [
            RewardCall(reward.function, (*trial, *limits), {}, group, deadline_s)
            for group, values in enumerate(given)
            for trial in reward.trials(*values)
        ]
        by_group: dict[int | None, list[Result]] = {group: [] for group in range(len(given))}
        for call, result in zip(calls, self.processes.call(calls), strict=True):
            by_group[call.group].append(result)
        return [joined(results) for results in by_group.values()]

    def _custom(self, chosen: Chosen, completed: Sequence[Scorable]) -> list[Result]:
        signature = chosen.signature
        assert signature is not None
        if signature.is_batch:
            return self._for_all(chosen, completed)
        pairs = [(done.text, signature.named(task, done)) for task, done in completed]
        if signature.is_async:
            pool, deadline_s = self.custom_processes, self.deadline_s
            return together(
                pool, TOGETHER, chosen.function, pairs, deadline_s + START_S, deadline_s
            )
        return self.custom_processes.call(
            [RewardCall(chosen.function, (text,), named, may_load=True) for text, named in pairs]
        )

    def _for_all(self, chosen: Chosen, completed: Sequence[Scorable]) -> list[Result]:
        """One call for all; it has `deadline_s` for the whole."""
        assert chosen.signature is not None
        named = chosen.signature.named_for_all(completed, self.steps)
        (result,) = self.custom_processes.call(
            [RewardCall(chosen.function, (), named, may_load=True)]
        )
        share = result.seconds / max(1, len(completed))
        values, error = result.value, result.error
        if error is None and (not isinstance(values, list) or len(values) != len(completed)):
            error = f"returned no list of {len(completed)}: {values!r:.60}"
        if error is not None:
            return [Result(None, error, share) for _ in completed]
        # None, as in TRL: this function does not judge that completion
        return [Result(0.0 if value is None else value, None, share) for value in values]

    def close(self) -> None:
        """Ends the processes, for good; `score` in another thread raises Closed."""
        self.processes.close()
        self.custom_processes.close()


def arguments(reward: Reward, task: Task, completion: Completion) -> tuple:
    """What a reward's `grade` is called with: the text, its columns, the gold answers."""
    columns = (task.extra[name] for name in reward.columns)
    golds = task.extra.get("answers") or (task.answer,)
    return (completion.text, *columns, *(golds if reward.needs_answer else ()))


def is_late(reason: str) -> bool:
    return reason.startswith(TOO_LONG)


def in_place(reward: Reward, values: tuple) -> Result:
    started = time.perf_counter()
    try:
        value, error = reward.grade(*values), None
    except Exception as raised:  # on a text that its author has not thought of
        value, error = None, reason(raised)
    return Result(value, error, time.perf_counter() - started)


def together(
    pool: ProcessPool, how: str, function: str, given: Sequence, deadline_s: float, *limits: float
) -> list[Result]:
    """`AT_ONCE` calls of a function in one, which `how` makes in a process."""
    parts = [given[i : i + AT_ONCE] for i in range(0, len(given), AT_ONCE)]
    calls = [RewardCall(how, (function, part, *limits), deadline_s=deadline_s) for part in parts]
    results: list[Result] = []
    for part, result in zip(parts, pool.call(calls), strict=True):
        each = result.value or [[None, result.error]] * len(part)
        results += [Result(value, error, result.seconds / len(part)) for value, error in each]
    return results


def joined(results: Sequence[Result]) -> Result:
    """A program's trials as one: it is right if there are some and all were passed."""
    seconds = sum(result.seconds for result in results)
    if not results or any(result.value is False for result in results):
        return Result(0.0, None, seconds)
    error = next((result.error for result in results if result.error is not None), None)
    return Result(1.0 if error is None else None, error, seconds)


def graded(result: Result) -> Result:
    """With {"reward", "score"} for its value, 0 where there is an error. A value that is neither a
    number nor such a dict is one."""
    value, error = result.value, result.error
    both = value if isinstance(value, dict) else {"reward": value}
    reward: Any = both.get("reward")
    score = both.get("score", reward)
    if error is None and not (is_number(score) and is_number(reward)):
        error = f"returned no number: {value!r:.60}"
    if error is not None:
        reward = score = 0.0
    return Result({"reward": float(reward), "score": float(score)}, error, result.seconds)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < MOST_REWARD


class FailureReport:
    """Rewards of a run that could not be computed: each kind is reported once, and too many stop
    it. `note` takes a line for the user."""

    def __init__(self, note: Callable[[str], None]):
        self.note = note
        self.reported: set[tuple[str, str]] = set()

    def check(self, groups: Sequence[Group]) -> int:
        """-> how many failed in `groups`. WillRepeat: more than half of the completions."""
        failures = [failure for group in groups for failure in group.failures]
        completions = sum(len(group.completions) for group in groups)
        for name, count in Counter(failure.reward for failure in failures).items():
            if count > completions / 2:
                raise too_many([f for f in failures if f.reward == name], completions)
        for failure in failures:
            if failure.kind not in self.reported and len(self.reported) < MOST_REPORTED:
                self.reported.add(failure.kind)
                self.note(str(failure))
        return len(failures)


def too_many(failures: Sequence[Failure], completions: int) -> WillRepeat:
    first, share = failures[0], f"{len(failures)} of {completions}"
    if first.reward == FROM_THE_ENVIRONMENT:
        return WillRepeat(f"the environment failed in {share} episodes ({first.reason}): fix it")
    advice = ", or set a longer --reward_timeout" if first.was_late else ""
    return WillRepeat(
        f"reward {first.reward} failed on {share} completions ({first.reason}), first on "
        f"{first.text[:200]!r}: fix it{advice}"
    )

"""Scores groups in a thread while an actor's engine draws others."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from unslothrl.actors.episodes import Played
from unslothrl.records import FROM_THE_ENVIRONMENT, Failure, Group, Task, correct
from unslothrl.rewards.scorer import Scored

Work = TypeVar("Work")
Result = TypeVar("Result")


class BackgroundScoring(Generic[Work, Result]):
    """Calls `score` on whatever waits, all of it in one call, so that its processes run side by
    side.

    With `at_the_end` nothing is scored before `finish`: for rewards that take all completions of a
    rollout in one call. What `score` raises is raised by the next `add`, `take` or `finish`.
    """

    def __init__(
        self,
        score: Callable[[Sequence[Work]], list[Result]],
        at_the_end: bool,
        notify: Callable[[], None] = lambda: None,
    ):
        """`notify` is called from the thread when there is something to take, or an error."""
        self.score, self.at_the_end, self.notify = score, at_the_end, notify
        self.waiting: list[Work] = []
        self.scored: list[Result] = []
        self.is_busy = self.is_finishing = self.is_closed = False
        self.error: BaseException | None = None
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None

    def add(self, work: Work) -> None:
        with self.changed:
            self._raise_error()
            self.waiting.append(work)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="scoring", daemon=True)
                self.thread.start()
            self.changed.notify_all()

    def take(self) -> list[Result]:
        """What has been scored since the last `take`."""
        with self.changed:
            self._raise_error()
            scored, self.scored = self.scored, []
            return scored

    def finish(self, seconds: float | None = None) -> bool:
        """Returns when everything that was added is scored, or after `seconds`. -> whether it is;
        where it is not, scoring goes on."""
        with self.changed:
            self.is_finishing = True
            self.changed.notify_all()
            is_done = self.changed.wait_for(self._is_done, seconds)
            self.is_finishing = not is_done
            self._raise_error()
            return bool(is_done)

    def _is_done(self) -> bool:
        return self.error is not None or not (self.waiting or self.is_busy)

    def close(self) -> None:
        """Ends the thread; what waits is given up. What is being scored must end by itself."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        if self.thread is not None:
            self.thread.join()

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def _may_score(self) -> bool:
        return bool(self.waiting) and (self.is_finishing or not self.at_the_end)

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.is_closed or self._may_score())
                if self.is_closed:
                    return
                work, self.waiting, self.is_busy = self.waiting, [], True
            try:
                results = self.score(work)
            except BaseException as error:
                with self.changed:
                    self.error, self.is_busy = error, False
                    self.changed.notify_all()
                self.notify()
                return
            with self.changed:
                self.scored += results
                self.is_busy = False
                self.changed.notify_all()
            self.notify()


def group_of(
    task: Task, played: Sequence[Played], scored: Scored, part: slice, has_environment: bool
) -> Group:
    """`part` of `scored` is of these episodes. With an environment, which earns a reward of its own
    and may say what is correct."""
    earned = {name: tuple(values[part]) for name, values in scored.rewards.items()}
    scores = tuple(scored.scores[part])
    failures = [
        replace(failure, candidate=failure.candidate - part.start)
        for failure in scored.failures
        if part.start <= failure.candidate < part.stop
    ]
    if has_environment:
        has_rewards = bool(earned)
        scores = tuple(
            score_of(one, score, has_rewards) for one, score in zip(played, scores, strict=True)
        )
        earned[FROM_THE_ENVIRONMENT] = tuple(one.reward for one in played)
        failures += [
            Failure(FROM_THE_ENVIRONMENT, one.lost, one.completion.text, candidate)
            for candidate, one in enumerate(played)
            if one.lost
        ]
    completions = tuple(one.completion for one in played)
    return Group(task, completions, earned, scores, tuple(failures))


def score_of(played: Played, score: float, has_rewards: bool) -> float:
    """What is reported as correct: what the environment says, else the first reward's `score` and,
    without rewards, whether the last turn earned a full one from the environment."""
    if played.lost:
        return 0.0
    if played.score is not None:
        return played.score
    turns = played.completion.transcript.turns if played.completion.transcript else ()
    return score if has_rewards or not turns else correct(turns[-1].reward)

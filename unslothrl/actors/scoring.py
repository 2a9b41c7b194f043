"""Scores groups in a thread while an actor's engine draws others."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from unslothrl.actors.episodes import Played
from unslothrl.records import FROM_THE_ENVIRONMENT, Assignment, Failure, Group, Task, correct
from unslothrl.rewards.reward import OVERLONG
from unslothrl.rewards.scorer import Scored

Work = tuple[Assignment, list[Played]]
"""A complete group's episodes."""
Result = tuple[int, Group]
"""By its assignment's index."""


@dataclass(eq=False)
class BackgroundScoring:
    """Calls `score` on whatever waits, all of it in one call, so that its processes run side by
    side.

    With `at_the_end` nothing is scored before `finish`: for rewards that take all completions of a
    rollout in one call. What `score` raises is raised by `take`.
    """

    score: Callable[[Sequence[Work]], list[Result]]
    at_the_end: bool
    notify: Callable[[], object] = lambda: None  # in the thread: there is a result, or an error

    def __post_init__(self) -> None:
        self.waiting: deque[Work] = deque()
        self.calls: deque[Future[list[Result]]] = deque()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")

    def add(self, work: Work) -> None:
        self.waiting.append(work)
        if not self.at_the_end:
            self._begin()

    def _begin(self) -> None:
        self.calls.append(self.thread.submit(self._score_waiting))
        self.calls[-1].add_done_callback(lambda _: self.notify())

    def _score_waiting(self) -> list[Result]:
        work = [self.waiting.popleft() for _ in range(len(self.waiting))]
        return self.score(work) if work else []  # a call before this one may have had all

    def take(self) -> list[Result]:
        """What has been scored since the last `take`."""
        scored: list[Result] = []
        while self.calls and self.calls[0].done():
            scored += self.calls[0].result()  # one that raised stays, and raises again
            self.calls.popleft()
        return scored

    def finish(self, seconds: float | None = None) -> None:
        """Returns when everything that was added is scored, or after `seconds`; scoring goes on."""
        if self.waiting:
            self._begin()
        wait(self.calls, seconds)

    def close(self) -> None:
        """Ends the thread; what waits is given up. What is being scored must end by itself."""
        self.thread.shutdown(cancel_futures=True)


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
        has_rewards = bool(earned.keys() - {OVERLONG})
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

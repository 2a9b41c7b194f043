"""The episodes of a task as a scored group."""

from collections.abc import Sequence
from dataclasses import replace

from unslothrl.actors.episodes import Played
from unslothrl.rewards.scorer import Scored
from unslothrl.turn import correct
from unslothrl.types import FROM_THE_ENVIRONMENT, Failure, Group, Task


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

"""What the folder of a run records of completions: a row for each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from unslothrl.types import FROM_THE_ENVIRONMENT, Completion, Group


def rollout_rows(
    groups: Sequence[Group],
    advantages: Sequence[Sequence[float]] | None = None,
    chosen: Sequence[Sequence[int]] | None = None,
) -> Iterator[dict[str, Any]]:
    """One row per candidate. `advantages` is [groups][candidates], 0 if not given; `chosen` has the
    indices of the selected candidates of every group, none if not given."""
    advantages = [[0.0] * len(g.completions) for g in groups] if advantages is None else advantages
    chosen = [[] for _ in groups] if chosen is None else chosen
    for group, values, picked in zip(groups, advantages, chosen, strict=True):
        for index, completion in enumerate(group.completions):
            yield {
                "task": group.task.id,
                "candidate": index,
                "prompt": prompt_of(group, completion),
                "answer": group.task.answer,
                "completion": completion.text,
                "finish_reason": completion.finish_reason,
                "rewards": {name: rewards[index] for name, rewards in group.rewards.items()},
                "score": group.scores[index],
                "advantage": values[index],
                "selected": index in picked,
                "policy_version": completion.policy_version,
                **turns_of(group, index),
            }


def evaluation_rows(drawn: Mapping[str, Sequence[Group]], **more: Any) -> Iterator[dict[str, Any]]:
    """One row per candidate of an evaluation, by set; each with `more`."""
    for name, groups in drawn.items():
        for group in groups:
            for index, completion in enumerate(group.completions):
                yield {
                    **more,
                    "set": name,
                    "task": group.task.id,
                    "candidate": index,
                    "prompt": prompt_of(group, completion),
                    "answer": group.task.answer,
                    "completion": completion.text,
                    "finish_reason": completion.finish_reason,
                    "tokens": sum(completion.version_counts.values()),
                    "rewards": {key: rewards[index] for key, rewards in group.rewards.items()},
                    "score": group.scores[index],
                    **turns_of(group, index),
                }


def prompt_of(group: Group, completion: Completion) -> str:
    """What the policy read first: the task's, or what its environment gave."""
    given = completion.transcript.prompt if completion.transcript is not None else ""
    return given or group.task.prompt


def turns_of(group: Group, index: int) -> dict[str, Any]:
    """The turns of an episode with an environment, and why it is lost if it is; nothing where there
    is none."""
    transcript = group.completions[index].transcript
    if transcript is None:
        return {}
    turns = [asdict(turn) for turn in transcript.turns]
    if not group.completions[index].is_lost:
        return {"turns": turns}
    reasons = [
        failure.reason
        for failure in group.failures
        if failure.candidate == index and failure.reward == FROM_THE_ENVIRONMENT
    ]
    return {"turns": turns, "lost": reasons[0] if reasons else ""}

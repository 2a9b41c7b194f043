"""Hand-made records."""

from collections.abc import Sequence
from dataclasses import replace

from unslothrl.types import Completion, Group, Task


def task(name: str, prompt_ids: Sequence[int] = (1, 2)) -> Task:
    return Task(name, f"problem {name}", "7", f"prompt {name}", tuple(prompt_ids))


def completion(
    length: int = 3, version: int = 0, text: str = "", finish_reason: str = "stop"
) -> Completion:
    ids = tuple(range(10, 10 + length))
    drawn = Completion.drawn(ids, (-0.5,) * length, finish_reason, version)
    return replace(drawn, text=text, generator="actor-0")


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

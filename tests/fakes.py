"""Hand-made records."""

from collections.abc import Sequence

from unslothrl.types import Completion, Group, Task


def task(name: str, prompt_ids: Sequence[int] = (1, 2)) -> Task:
    return Task(name, f"problem {name}", "7", f"prompt {name}", tuple(prompt_ids))


def completion(
    length: int = 3, version: int = 0, text: str = "", finish_reason: str = "stop"
) -> Completion:
    ids = tuple(range(10, 10 + length))
    return Completion(ids, (-0.5,) * length, finish_reason, version, text, "actor-0")


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

"""Hand-made records."""

from collections.abc import Sequence

from unslothrl.types import Completion, Group, Task


def task(name: str, prompt_ids: Sequence[int] = (1, 2)) -> Task:
    return Task(name, f"problem {name}", "7", f"prompt {name}", tuple(prompt_ids))


def completion(length: int = 3, version: int = 0, text: str = "") -> Completion:
    ids = tuple(range(10, 10 + length))
    return Completion(ids, (-0.5,) * length, "stop", version, text, "actor-0")


def group(name: str, rewards: Sequence[float], lengths: Sequence[int] | None = None) -> Group:
    lengths = lengths or [3] * len(rewards)
    return Group(
        task(name),
        tuple(completion(length) for length in lengths),
        {"accuracy": tuple(rewards)},
        tuple(rewards),
    )

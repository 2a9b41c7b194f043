"""Evaluation sets that have a name of their own: where they are on the hub, and who grades them.

unslothrl eval --dataset MATH-500                     from the hub
unslothrl eval --dataset MATH-500=math500.jsonl       from a file, graded in the same way
"""

from collections.abc import Iterable
from dataclasses import dataclass

from unslothrl.errors import UserError

MATHS, CODE = "boxed", "code"  # rewards
MATHS_TOO = ("accuracy", "boxed", "think_answer_tags", "search")  # compare with a gold answer too


@dataclass(frozen=True)
class Named:
    source: str  # as `sources.parse` takes it
    reward: str  # that grades it where the run's own rewards cannot


NAMED = {
    "MATH-500": Named("HuggingFaceH4/MATH-500@test", MATHS),
    "GSM8K": Named("openai/gsm8k:main@test", MATHS),
    "AIME": Named("HuggingFaceH4/aime_2024@train", MATHS),
    "AIME25": Named("math-ai/aime25@test", MATHS),
    "AMC": Named("math-ai/amc23@test", MATHS),
    "HumanEval": Named("openai/openai_humaneval@test", CODE),
    "MBPP": Named("google-research-datasets/mbpp:sanitized@test", CODE),
}
OTHER_NAMES = {"math500": "MATH-500", "aime24": "AIME", "amc23": "AMC"}


def name_of(text: str) -> str | None:
    """The set that a name means, whatever its case and hyphens; None for any other."""
    plain = text.lower().replace("-", "").replace("_", "")
    by_name = {name.lower().replace("-", ""): name for name in NAMED}
    return by_name.get(plain) or OTHER_NAMES.get(plain)


def reward_of(names: Iterable[str], given: str) -> str | None:
    """The reward that grades the eval sets with these names; None where a run's first reward,
    `given`, does, or no set is known. UserError where one reward cannot grade them all."""
    wanted: dict[str, str] = {}  # reward -> a set
    for name in names:
        known = name_of(name)
        if known is not None:
            wanted.setdefault(NAMED[known].reward, known)
    if len(wanted) > 1:
        names = " and ".join(wanted.values())
        raise UserError(f"dataset {names} are graded by different rewards: evaluate each by itself")
    if not wanted or given in wanted or (MATHS in wanted and given in MATHS_TOO):
        return None
    return next(iter(wanted))

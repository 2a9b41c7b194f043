"""The rewards that `--reward` names: a file each, which describes its reward in REWARD; or several
in one file's REWARDS, which TOGETHER has.

A new file here is a new `--reward`. Its name is the file's.
"""

import functools
import importlib
import pkgutil

from unslothrl.rewards.reward import Reward

TOGETHER = {  # reward -> the file that has it
    "accuracy": "text", "format": "text", "tags": "text",
    "boxed": "maths", "think_answer_tags": "maths",
}  # fmt: skip


@functools.cache
def names() -> tuple[str, ...]:
    """Every reward of the package, in alphabetical order, without importing one."""
    files = {module.name for module in pkgutil.iter_modules(__path__)}
    return tuple(sorted({*TOGETHER, *files - {*TOGETHER.values()}}))


def load(name: str) -> Reward:
    module = importlib.import_module(f"{__name__}.{TOGETHER.get(name, name)}")
    return module.REWARDS[name] if name in TOGETHER else module.REWARD

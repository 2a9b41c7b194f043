"""The rewards that `--reward` names: one file each, which describes its reward in REWARD.

A new file here is a new `--reward`. Its name is the file's.
"""

import functools
import importlib
import pkgutil

from unslothrl.rewards.reward import Reward


@functools.cache
def names() -> tuple[str, ...]:
    """Every reward of the package, in alphabetical order, without importing one."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load(name: str) -> Reward:
    """The reward of one of `names`."""
    return importlib.import_module(f"{__name__}.{name}").REWARD

"""The rewards that `--reward` names: one file each, which describes its reward in REWARD.

A new file here is a new `--reward`. Its name is the file's.
"""

import functools
import importlib
import pkgutil

from unslothrl.errors import UserError
from unslothrl.rewards.reward import Reward


@functools.cache
def names() -> tuple[str, ...]:
    """Every reward of the package, in alphabetical order, without importing one."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


@functools.cache
def load(name: str) -> Reward:
    """The reward of one of `names`. Raises UserError for a file that describes none."""
    module = importlib.import_module(f"{__name__}.{name}")
    reward = getattr(module, "REWARD", None)
    if not isinstance(reward, Reward):
        raise UserError(
            f"reward {name}: {module.__file__} defines no REWARD: write REWARD = Reward(...) with "
            "Reward from unslothrl.rewards.reward"
        )
    return reward

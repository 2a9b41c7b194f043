"""The objectives that `--learner` names: one file each, which says what it is and sets the parts.

A new file here is a new `--learner`; a file of the user's own, `--learner path/to/mine.py`, is read
the same way. Both define OBJECTIVE.
"""

import functools
import pkgutil
from pathlib import Path

from unslothrl.algorithms.objective import Objective, read
from unslothrl.errors import UserError
from unslothrl.files import expanded
from unslothrl.files import is_file as is_there
from unslothrl.text import plain


@functools.cache
def names() -> tuple[str, ...]:
    """What `--learner` knows without a file of the user's own."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def is_file(name: str) -> bool:
    """Whether `--learner` gives a file, not a name."""
    return name.endswith(".py")


def load(name: str) -> Objective:
    """The objective of that name, or OBJECTIVE of the Python file `name`. Raises UserError."""
    path = expanded(name) if is_file(name) else Path(__path__[0]) / f"{name}.py"
    if not is_there(path):
        raise UserError(f"learner {plain(name)}: no such file: check the path")
    return read(name, path)

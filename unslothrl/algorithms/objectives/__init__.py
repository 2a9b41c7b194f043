"""The objectives that `--learner` names: one file each, which says what it is and sets the parts.

A new file here is a new `--learner`; a file of the user's own, `--learner path/to/mine.py`, is read
the same way. Both define OBJECTIVE.
"""

import functools
import importlib
import importlib.util
import pkgutil

from unslothrl.algorithms import own
from unslothrl.algorithms.objective import Objective
from unslothrl.errors import UserError
from unslothrl.files import expanded
from unslothrl.files import is_file as is_there
from unslothrl.untrusted import MOST_CODE, Unreadable, plain, read_text


@functools.cache
def names() -> tuple[str, ...]:
    """What `--learner` knows without a file of the user's own."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def is_file(name: str) -> bool:
    return name.endswith(".py")


def load(name: str) -> Objective:
    """The objective of that name, or OBJECTIVE of the Python file `name`. Raises UserError."""
    if not is_file(name):
        if name not in names():
            raise UserError(f"learner {name!r} is none of {', '.join(names())}: set --learner grpo")
        return importlib.import_module(f"{__name__}.{name}").OBJECTIVE
    path = expanded(name)
    if not is_there(path):
        raise UserError(f"learner {plain(name)}: no such file: check the path")
    try:
        read_text(path, MOST_CODE)
    except Unreadable as error:
        raise UserError(f"learner {name}: {error}: give a .py file") from None
    spec = importlib.util.spec_from_file_location(f"unslothrl_objective_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"learner {name}: Python cannot read it: give a .py file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"learner {name} fails when it is imported ({reason}): fix it") from None
    found = getattr(module, "OBJECTIVE", None)
    if not isinstance(found, Objective):
        raise UserError(
            f"learner {name} defines no OBJECTIVE: write OBJECTIVE = Objective(...) with Objective "
            "from unslothrl.algorithms.objective"
        )
    return own.checked(found, name)

"""What answers the policy between its turns. One file each; a new file here is a new environment,
and a class of the user's own, `file.py:Class`, is one too. See `base.Environment`.
"""

import ast
import functools
import importlib
import importlib.util
import pkgutil

from unslothrl.environments.base import Environment
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file
from unslothrl.untrusted import MOST_CODE, Unreadable, plain, read_text

SINGLE_TURN = "single_turn"


@functools.cache
def names() -> tuple[str, ...]:
    """The environments of this package."""
    return tuple(sorted({m.name for m in pkgutil.iter_modules(__path__)} - {"base", "chat"}))


def check(name: str) -> None:
    """What can be seen without importing the file: it may import what the driver must not. Raises
    UserError."""
    file, separator, attribute = name.rpartition(":")
    if not separator:
        if name not in names():
            raise UserError(
                f"environment {plain(name)} is none of {', '.join(names())}: set --environment "
                "file.py:Class for one of your own"
            )
        return
    if not is_file(expanded(file)):
        raise UserError(f"environment {plain(name)}: no such file: check the path")
    try:
        tree = ast.parse(read_text(expanded(file), MOST_CODE))
    except (Unreadable, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"environment {plain(name)}: {reason:.200}: give a .py file") from None
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    may_be_made = any(isinstance(node, ast.Assign | ast.ImportFrom) for node in tree.body)
    if attribute not in classes and not may_be_made:
        raise UserError(f"environment {plain(name)}: the file defines no such class: fix it")


def load(name: str) -> type[Environment]:
    """The class of a name, or `Class` of `file.py:Class`. Raises UserError."""
    file, separator, attribute = name.rpartition(":")
    check(name)
    if not separator:
        module = importlib.import_module(f"{__name__}.{name}")
        return checked(getattr(module, "ENVIRONMENT", None), name)
    path = expanded(file)
    spec = importlib.util.spec_from_file_location(f"unslothrl_environment_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"environment {plain(name)}: Python cannot read it: give a .py file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"environment {plain(name)} fails when it is imported ({reason}): fix it"
        ) from None
    return checked(getattr(module, attribute, None), name)


def checked(found: object, name: str) -> type[Environment]:
    """`found` where it is an environment's class. Raises UserError."""
    if not isinstance(found, type):
        raise UserError(f"environment {plain(name)}: the file defines no such class: fix it")
    missing = [part for part in ("reset", "step") if not callable(getattr(found, part, None))]
    if not isinstance(getattr(found, "max_turns", None), int):
        missing.append("max_turns")
    if missing:
        raise UserError(
            f"environment {plain(name)} lacks {', '.join(missing)}: write max_turns = 8, "
            "reset(self, task, seed) and async def step(self, action), see docs/contributing.md"
        )
    return found

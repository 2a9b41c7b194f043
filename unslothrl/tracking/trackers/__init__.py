"""Trackers besides metrics.jsonl, one a file, of the name of their package: what one does, and
whether it can be used here.

A module has `start(run: TrackedRun) -> Tracker`, and may have `problem() -> str | None`: why it
cannot be used although it is installed, and what to set. Packages are imported by `start` alone.
"""

import importlib
import importlib.util
import pkgutil
import shlex
import sys
from collections.abc import Sequence
from types import ModuleType

from unslothrl.errors import UserError

NONE = "none"  # what `--track` is to switch off what a resumed run had


def names() -> tuple[str, ...]:
    """What `--track` may be besides."""
    modules = pkgutil.iter_modules(__path__)
    return tuple(sorted(module.name for module in modules if module.name != "base"))


def load(name: str) -> ModuleType:
    """The file of a tracker; its package is not imported yet."""
    return importlib.import_module(f"{__name__}.{name}")


def check(chosen: Sequence[str]) -> None:
    """Raises UserError for a tracker whose package is missing or that lacks a setting."""
    for name in wanted(chosen):
        if not is_installed(name):
            pip = f"{shlex.quote(sys.executable)} -m pip install {name}"
            raise UserError(
                f"track {name}: the package {name} is not installed: run `{pip}`, or set "
                f"--track {NONE}"
            )
        if why := problem_of(name):
            raise UserError(f"track {name}: {why}")


def problem_of(name: str) -> str | None:
    """What the tracker's own file finds, or its package raises there."""
    problem = getattr(load(name), "problem", None)
    try:
        return None if problem is None else problem()
    except Exception as error:  # of a package that is broken, or refuses its variables
        said = " ".join(str(error).split())
        return f"it cannot be used ({type(error).__name__}: {said:.200}): set --track {NONE}"


def wanted(chosen: Sequence[str]) -> tuple[str, ...]:
    """The trackers of `--track`, each once."""
    return tuple(name for name in dict.fromkeys(chosen) if name != NONE)


def is_installed(package: str) -> bool:
    """A folder of that name without code, such as W&B leaves in the current one, does not count."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None

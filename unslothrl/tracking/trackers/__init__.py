"""Trackers besides metrics.jsonl, one a file, of the name of their package: what one does, and
whether it can be used here.

A module has `start(run: TrackedRun) -> Tracker`, and may have `problem() -> str | None`: why it
cannot be used although it is installed, and what to set. Packages are imported by `start` alone.
"""

import importlib
import importlib.util
import os
import pkgutil
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from unslothrl.errors import UserError

PROJECT = "unslothrl"  # where runs are put unless anything names another
NONE = "none"  # what `--track` is to switch off what a resumed run had


@dataclass(frozen=True)
class TrackedRun:
    """A run as its tracker begins or goes on with it."""

    name: str
    id: str  # this tracker's, the same after a resume
    folder: Path  # of the run
    config: Mapping[str, Any]  # all options as resolved, in JSON's types
    resumed_at: int | None = None  # the step that it goes on after; None: it is new

    def project(self, variable: str) -> str:
        """`--project_name`, else what the tracker's own variable says."""
        return self.config.get("project_name") or os.environ.get(variable) or PROJECT


class Tracker(Protocol):
    """One run in a tracker. Every method is called in the same thread, and may raise or take long:
    see `tracked.Trackers`."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of a step; 0 is the evaluation before the first."""

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """A few completions of an evaluation, as a table: see `tracked.sample_rows`."""

    def close(self, status: str) -> None:
        """Writes what is left. `status` is finished, interrupted or failed."""


def names() -> tuple[str, ...]:
    """What `--track` may be besides."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


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
        problem = getattr(load(name), "problem", None)
        if problem is not None and (why := problem()):
            raise UserError(f"track {name}: {why}")


def wanted(chosen: Sequence[str]) -> tuple[str, ...]:
    """The trackers of `--track`, each once."""
    return tuple(name for name in dict.fromkeys(chosen) if name != NONE)


def is_installed(package: str) -> bool:
    """A folder of that name without code, such as W&B leaves in the current one, does not count."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None

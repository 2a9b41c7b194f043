"""What a tracker is given, and what it can do."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PROJECT = "unslothrl"  # where runs are put unless anything names another


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

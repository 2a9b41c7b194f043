"""A run as its report sees it, of whatever kind: what its folder says of how it went."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from unslothrl.config.toml_files import COMMAND, entries
from unslothrl.text import redacted_values
from unslothrl.tracking import origin
from unslothrl.tracking.metrics import Points, Row, eval_sets, is_number, mean
from unslothrl.tracking.origin import METHODS, RL, Origin
from unslothrl.tracking.report.rollout_data import Scores, evaluation_scores
from unslothrl.tracking.rows import read_jsonl
from unslothrl.tracking.run_folder import CHECKS, CONFIG, EVALS, NOTES, RunFolder, is_held

LEAST = 3  # steps at either end of a curve
DAMAGED = "damaged"
WRONG = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)  # then


@dataclass(frozen=True)
class RunHistory:
    """Curves by the name of their metric, evaluations by their step."""

    rows: Sequence[Row]  # of metrics.jsonl
    options: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    begun: Origin = field(default_factory=Origin)
    folder: RunFolder = field(default_factory=lambda: RunFolder("."))
    name: str = ""  # unlike any other's in a comparison

    @classmethod
    def read(cls, folder: RunFolder, name: str = "") -> "RunHistory":
        """ValueError or UserError where a file is damaged; OSError."""
        config = folder.path / CONFIG
        options = redacted_values(entries(config)) if config.is_file() else {}
        rows, summary = with_speed(folder.read_metrics()), folder.read_summary()
        begun = origin.read(folder.path)
        return cls(rows, options, summary, begun, folder, name or folder.path.resolve().name)

    @property
    def kind(self) -> str:
        """The command that trained it."""
        command = str(self.options.get(COMMAND, RL))
        return command if command in METHODS else RL

    @property
    def is_rl(self) -> bool:
        return self.kind == RL

    @property
    def status(self) -> str:
        """What the summary says; of a run without one whether a process holds its folder."""
        if said := self.summary.get("status"):
            return str(said)
        return "running" if is_held(self.folder.path) else "killed"

    def points(self, name: str) -> Points:
        """The curve of a metric; rows that lack it or hold null are left out."""
        return [(row["step"], row[name]) for row in self.rows if is_number(row.get(name))]

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.points(name)]

    def ends(self, name: str, least: int = LEAST) -> tuple[float, float] | None:
        """Means of the first and the last tenth, at least 3 steps; None of under `least`."""
        values = self.values(name)
        window = max(LEAST, len(values) // 10)
        return (mean(values[:window]), mean(values[-window:])) if len(values) >= least else None

    @cached_property
    def sets(self) -> list[str]:
        return eval_sets(self.rows)

    @cached_property
    def checks(self) -> list[dict[str, Any]]:
        """What processes found of themselves at each start, and what was found of each export."""
        return read_jsonl(self.folder.path / CHECKS, lambda damaged: None)

    @cached_property
    def notes(self) -> list[dict[str, Any]]:
        """What the terminal has said beside the steps."""
        return read_jsonl(self.folder.path / NOTES, lambda damaged: None)

    @property
    def starts(self) -> list[dict[str, Any]]:
        return [row for row in self.checks if "process" in row]

    @cached_property
    def evaluations(self) -> dict[int, Scores]:
        """By step, what the evaluations of the run itself drew."""
        files = {step: self.folder.step_file(EVALS, step) for step in self.folder.steps_of(EVALS)}
        return {s: evaluation_scores(file, file.stat().st_mtime_ns) for s, file in files.items()}

    def scores(self, step: int, name: str) -> Mapping[str, Sequence[float]]:
        """Problem -> the scores of its completions in an evaluation; {} where it is not there."""
        return self.evaluations.get(step, {}).get(name, {})


def with_speed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the tokens that a step of SFT, DPO or a reward model has read of the run's, a second."""
    trained = [row for row in rows if is_number(row.get("train/tokens"))]
    none: dict[str, Any] = {"train/tokens": 0}
    for before, row in itertools.pairwise([none, *trained]):
        if is_number(seconds := row.get("timing/step_s")) and seconds > 0:
            row["train/tokens_per_s"] = (row["train/tokens"] - before["train/tokens"]) / seconds
    return rows


def read_all(folders: Sequence[Path]) -> list[RunHistory]:
    """Those of one name are told apart by their path."""
    names = [path.resolve().name for path in folders]
    return [
        RunHistory.read(RunFolder(path), name if names.count(name) == 1 else str(path))
        for path, name in zip(folders, names, strict=True)
    ]

"""Trackers besides metrics.jsonl, one a file, of the name of their package, and what feeds them.
What one of them raises, or that it hangs, costs a note and that tracker, never the run.

A module has `start(run: TrackedRun)`, which gives a tracker, and may have `problem()`, which says
why it cannot be used although it is installed, or None. A tracker is one run there:

    log(step, metrics)      numbers of a step; 0 is the evaluation before the first
    samples(step, rows)     a few completions of an evaluation, at least one: see `sample_rows`
    close(status)           finished, interrupted or failed

Every method is called in the same thread, and may raise or take long.
"""

import importlib
import importlib.util
import json
import os
import queue
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from unslothrl.errors import UserError
from unslothrl.files import read_object, write_whole
from unslothrl.records import Group
from unslothrl.text import one_line
from unslothrl.tracking.metrics import is_number
from unslothrl.tracking.rows import evaluation_rows

PROJECT = "unslothrl"  # where runs are put unless anything names another
IDS = "trackers.json"  # in the run's folder: tracker -> the id of the run there
CLOSE_S = 60.0  # that trackers have in the end to write and send what is left
SAMPLES = 4  # completions of each evaluation set, the first of its first problems
COLUMNS = ["set", "task", "prompt", "answer", "completion", "score", "finish_reason", "tokens"]
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


def load(name: str) -> ModuleType:
    """The file of a tracker; its package is not imported yet."""
    return importlib.import_module(f"{__name__}.{name}")


def check(chosen: Sequence[str]) -> None:
    """Raises UserError for a tracker whose package is missing or that lacks a setting."""
    for name in wanted(chosen):
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # W&B leaves a folder of its name without code
            pip = f"{shlex.quote(sys.executable)} -m pip install {name}"
            raise UserError(
                f"track {name}: the package {name} is not installed: run `{pip}`, or set "
                f"--track {NONE}"
            )
        if why := getattr(load(name), "problem", lambda: None)():
            raise UserError(f"track {name}: {why}")


def wanted(chosen: Sequence[str]) -> tuple[str, ...]:
    """The trackers of `--track`, each once."""
    return tuple(name for name in dict.fromkeys(chosen) if name != NONE)


class Trackers:
    """All trackers of a run; none unless `start` is called."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        config: Mapping[str, Any],
        note: Callable[[str], None],
    ):
        """`config` is in JSON's types; `note` gets a line for each tracker that fails."""
        self.names, self.folder, self.config, self.note = wanted(names), folder, config, note
        self.threads: list[TrackerThread] = []

    def start(self, resumed_at: int | None = None) -> None:
        """Begins the run in every tracker, or goes on after a step."""
        path = self.folder / IDS
        ids = read_object(path) if self.names and path.is_file() else {}
        if new := {name: secrets.token_hex(4) for name in self.names if name not in ids}:
            ids |= new
            write_whole(path, json.dumps(ids, indent=1).encode() + b"\n")
        for name in self.names:
            run = TrackedRun(self.folder.name, ids[name], self.folder, self.config, resumed_at)
            self.threads.append(TrackerThread(name, partial(load(name).start, run)))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """The numbers of a row of metrics.jsonl."""
        numbers = {k: value for k, value in metrics.items() if is_number(value) and k != "step"}
        self._tell("log", step, numbers)

    def samples(self, step: int, drawn: Mapping[str, Sequence[Group]]) -> None:
        """Of what an evaluation drew, by set, a few completions."""
        if self.threads and (rows := sample_rows(drawn)):
            self._tell("samples", step, rows)

    def close(self, status: str, within_s: float = CLOSE_S) -> None:
        """Ends the run in every tracker; those that do not return in time are left behind."""
        end = time.monotonic() + within_s
        self._tell("close", status)
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                thread.failure = f"it has not finished within {within_s:.0f} s"
        self._drop_failed()
        self.threads = []

    def _tell(self, method: str, *arguments: Any) -> None:
        for thread in self.threads:
            thread.calls.put((method, arguments))
        self._drop_failed()

    def _drop_failed(self) -> None:
        for thread in self.threads:
            if thread.failure is not None:
                self.note(f"track {thread.name}: {thread.failure}: nothing more is logged there")
        self.threads = [thread for thread in self.threads if thread.failure is None]


class TrackerThread(threading.Thread):
    """Does a tracker's calls in order, up to its `close`. It is a daemon, as it may hang."""

    def __init__(self, name: str, start: Callable[[], Any]):
        super().__init__(name=name, daemon=True)
        self.calls: queue.SimpleQueue[tuple[str, tuple]] = queue.SimpleQueue()
        self.start_tracker = start
        self.failure: str | None = None
        self.start()

    def run(self) -> None:
        try:
            tracker, method = self.start_tracker(), ""
            while method != "close":
                method, arguments = self.calls.get()
                getattr(tracker, method)(*arguments)
        except BaseException as error:  # SystemExit included: it must not end more than this thread
            self.failure = f"{type(error).__name__}: {one_line(error)}"


def sample_rows(drawn: Mapping[str, Sequence[Group]]) -> list[dict[str, Any]]:
    few = {name: groups[:SAMPLES] for name, groups in drawn.items()}
    rows = [row for row in evaluation_rows(few) if row["candidate"] == 0]
    return [{name: row[name] for name in COLUMNS} for row in rows]

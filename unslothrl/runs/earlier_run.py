"""A run that is resumed: what it left in its folder, and how a new process goes on from that."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from unslothrl.checkpoints.store import CheckpointStore
from unslothrl.config.toml_files import read_toml, to_toml
from unslothrl.config.values import Table
from unslothrl.errors import UserError
from unslothrl.runs.resolve import Resolved
from unslothrl.runs.resume import COMMANDS, FREE, changed
from unslothrl.text import redacted_values
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import CONFIG, RunFolder
from unslothrl.tracking.step_lines import found_at, is_whole
from unslothrl.tracking.terminal import Terminal

LENGTH = ("max_steps", "episodes", "batch_size", "dataset")  # they say how many steps there are


@dataclass(frozen=True)
class EarlierRun:
    """The run of `--resume`, its folder locked."""

    folder: RunFolder
    checkpoint: Any  # to go on from, as its store reads it; None: from its start
    table: Table
    changes: tuple[str, ...]  # of its options
    notes: tuple[str, ...]

    @classmethod
    def reopen(
        cls, resolved: Resolved, store: type[CheckpointStore], at_end: contextlib.ExitStack
    ) -> "EarlierRun":
        """Locks the folder until `at_end`, and finds its newest whole checkpoint. UserError."""
        options, table = resolved.options, COMMANDS[resolved.command]
        folder = RunFolder.reopen(options.resume or "")
        at_end.callback(folder.close)
        folder.checkpoints = store(folder.path, options.keep_checkpoints)
        damaged = damaged_metrics(folder)
        notes: list[str] = []
        checkpoint = newest_recorded(folder, notes)
        if checkpoint is None and folder.checkpoints.steps():
            raise UserError(f"resume {options.resume}: {notes[0]}")
        notes += damaged
        changes = changed(read_toml(folder.path / CONFIG, table), options, table)
        return cls(folder, checkpoint, table, tuple(changes), tuple(notes))

    @property
    def step(self) -> int:
        return self.checkpoint.step if self.checkpoint else 0

    @property
    def logged(self) -> int:
        """The last step whose metrics are kept; -1: none."""
        return self.checkpoint.logged if self.checkpoint else -1

    def has_finished(self, options: Any) -> bool:
        """Whether no steps are left, as far as that is known before the data is read. UserError
        where some are, and its checkpoints are gone: it would begin again over its own record."""
        summary = self.summary()
        if summary.get("status") != "finished" or not is_whole(summary):
            return False
        before = read_toml(self.folder.path / CONFIG, self.table)
        is_same = all(before.get(n) == redacted_values(getattr(options, n)) for n in LENGTH)
        if not is_same and self.checkpoint is None:
            self.folder.refuse_restart()
        return is_same

    def summary(self) -> dict[str, Any]:
        """How it ended; {} where that is damaged: a run that goes on needs none of it."""
        try:
            return self.folder.read_summary()
        except ValueError:
            return {}

    def show(self, view: Terminal) -> None:
        """As at its end, with nothing done."""
        view.resumed(self.folder.read_metrics(lambda damaged: None))
        view.note("this run has finished: set --max_steps or --episodes higher to continue")
        if self.changes:
            view.note(f"without effect, as no step is left: {', '.join(self.changes)}")
        view.finish(found_at(self.folder.path, self.summary()))

    @property
    def draws_otherwise(self) -> bool:
        """Whether an option has changed on which rollouts may depend."""
        return any(line.partition(" ")[0] not in FREE for line in self.changes)

    def go_on(self, options: Any, view: Terminal, comments: Sequence[str] = ()) -> None:
        """Once the training is as it was: deletes what came after, writes the config."""
        self.folder.write_config(to_toml(replace(options, resume=None), comments))
        self.folder.truncate_after(self.step, self.logged)
        origin.record_resume(self.folder.path, self.step, self.changes)
        view.resumed(self.folder.read_metrics())


def newest_recorded(folder: RunFolder, notes: list[str]) -> Any:
    """The newest whole checkpoint, or that before where the record of its step was cut off."""
    whole = folder.checkpoints.whole_ones(notes.append)
    newest = next(whole, None)
    if newest is None:
        return None
    step = newest.step
    cut_off = folder.incomplete_record(step, newest.logged)
    if cut_off is None:
        return newest
    before = next(whole, None)
    if before is None or before.step != step - 1:
        notes.append(f"{cut_off} is incomplete: what it had of step {step} is lost")
        return newest
    notes.append(f"{cut_off} is incomplete: step {step} is done again")
    return before


def damaged_metrics(folder: RunFolder) -> list[str]:
    """A note where lines of metrics.jsonl are damaged, which cost no step. UserError."""
    damaged: list[str] = []
    try:
        folder.read_metrics(damaged.append)
    except ValueError as error:
        raise UserError(f"resume {folder.path}: {error}: remove the file") from None
    more = f", and {len(damaged) - 1} more" if damaged[1:] else ""
    return [f"{damaged[0]}{more}: left out of the record of the run"] if damaged else []

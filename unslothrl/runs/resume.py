"""Which run `--resume` means, what is not as it was in it, and how its folder goes on."""

import contextlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unslothrl.checkpoints.store import Checkpoints
from unslothrl.config.offline_options import TABLES
from unslothrl.config.options import SPLITS
from unslothrl.config.toml_files import COMMAND, entries, read_toml, to_toml
from unslothrl.config.values import RUN, Table
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file, write_whole
from unslothrl.text import plain, redacted_values
from unslothrl.tracking import origin
from unslothrl.tracking.report.verdict import ending
from unslothrl.tracking.run_folder import CONFIG, RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.weights import adapter_use, base_model, base_parts, starting_adapter

AUTO = "auto"
COMMANDS: dict[str, Table] = {RUN.command: RUN, **TABLES}
LENGTH = ("max_steps", "episodes", "batch_size", "dataset")  # they say how many steps there are
PLACE = {"resume", "recipe", "run_name", "output_dir"}  # how it was started, and where it is
FREE = PLACE | {  # may differ in one run: its length, what it writes, its machines
    "max_steps", "episodes", "track", "project_name", "save_every", "checkpoint_every",
    "keep_checkpoints", "keep_rollouts", "mirror", "profile", "cluster", "number_of_actors",
    "number_of_learners", "min_actors", "ray_address", "actor_pipeline_parallel", *SPLITS,
}  # fmt: skip


def recipe_of(table: Table, user: Mapping[str, Any]) -> dict[str, Any]:
    """What the user set, as run.json keeps it. Two commands may be given the same options."""
    options = {name: redacted_values(user[name]) for name in sorted(user.keys() - FREE)}
    command = {} if table is RUN else {COMMAND: table.command}
    return json.loads(json.dumps(options | command))


def newest(table: Table, user: Mapping[str, Any], output_dir: str, notes: list[str]) -> Path | None:
    """The run that goes on: that of `run_name` if the user gave one, else the newest that was begun
    with the same options, but for those that are `FREE`. None that another user has put there."""
    parent = Path(output_dir)
    name = user.get("run_name")
    recipe = recipe_of(table, user)
    found = [
        folder
        for folder in (parent.iterdir() if parent.is_dir() else ())
        if is_file(folder / CONFIG)
        and (folder.name == name if name is not None else origin.read(folder).recipe == recipe)
    ]
    others = {folder for folder in found if is_of_another(folder, parent.stat(), os.geteuid())}
    notes += [
        f"resume auto: {folder} is another user's, whose options may name code: to continue it, "
        f"set --resume {folder}"
        for folder in sorted(others)
    ]

    def begun(folder: Path) -> tuple[str, float]:
        return origin.read(folder).started, (folder / CONFIG).stat().st_mtime

    return max((folder for folder in found if folder not in others), key=begun, default=None)


def is_of_another(folder: Path, parent: os.stat_result, user: int) -> bool:
    """Whether somebody else than `user`, root or the owner of the parent has put a folder or its
    options there. Where others cannot write to the parent they have put nothing there."""
    if not parent.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    owners = {folder.lstat().st_uid, folder.stat().st_uid, (folder / CONFIG).stat().st_uid}
    return not owners <= {user, 0, parent.st_uid}


def found(
    table: Table, user: Mapping[str, Any], output_dir: str, notes: list[str], fetches: bool
) -> dict[str, Any]:
    """`resume` and `mirror` of the run that `user` means, which is fetched if it is away."""
    layer: dict[str, Any] = {}
    chosen, asked = user.get("resume"), user.get("mirror")
    if chosen is None and asked is None:
        return layer
    from unslothrl.mirror import fetching

    if asked is not None:
        layer["mirror"] = None if asked == fetching.NONE else fetching.canonical("mirror", asked)
    mirror = layer.get("mirror")
    if chosen == AUTO:
        here = newest(table, user, output_dir, notes)
        chosen = None if here is None else str(here)
        if here is None and mirror is not None and fetches:
            chosen = fetching.newest(mirror, user.get("run_name"), recipe_of(table, user))
        none = f"no run with these options in {output_dir} yet: a new one"
        notes.append(f"resume auto: {chosen or none}")
    if chosen is not None and asked is None and is_file(Path(chosen) / CONFIG):
        own = entries(Path(chosen) / CONFIG).get("mirror")  # in which it may lie itself
        mirror = own if isinstance(own, str) else None
    if chosen is not None and (fetching.is_url(chosen) or fetching.is_in(chosen, mirror)):
        chosen = fetching.canonical("resume", chosen)
        if not fetches:
            raise UserError(f"resume {chosen} has to be fetched, which only training does: set "
                            "--resume to a folder")  # fmt: skip
        layer.setdefault("mirror", chosen.rpartition("/")[0])
        chosen = str(fetching.fetch(chosen, output_dir))
    return layer if chosen is None and user.get("resume") is None else {**layer, "resume": chosen}


def changed(before: Mapping[str, Any], after: Any, table: Table) -> list[str]:
    """A line for each option that is not as the run's config.toml, `before`, has it."""
    lines = []
    for name, entry in table.options.items():
        was, now = before.get(name, entry.default), redacted_values(getattr(after, name))
        if name not in PLACE and was != now:
            lines.append(f"{name} {written(was)} -> {written(now)}")
    return lines


def written(value: Any) -> str:
    """As the command line or a recipe would have it."""
    if value is None:
        return "not set"
    return " ".join(map(plain, value)) or "not set" if isinstance(value, tuple) else plain(value)


def base_parts_of(
    options: starting_adapter.Options, notes: list[str], judges: Sequence[str] = ()
) -> dict[str, str]:
    """The parts of a run's base. `notes` gets a line where the adapter that it begins with, or one
    of its reward models (`judges`), was trained over another one. UserError where a run that goes
    on was."""
    now, model = base_parts.of(base_model.find(options.model)), options.model
    used = [*judges]
    if options.resume is not None:
        before = origin.read(expanded(options.resume)).base
        if changed := base_parts.differing(before, now):
            raise UserError(
                f"model {model} is not the base that the run was trained on, by its {changed}: set "
                "--model to a copy of that, or start a new run from the adapter with --adapter"
            )
        if not before:
            notes.append(
                f"resume {options.resume}: an earlier version began it, which recorded no more of "
                "its base than the 4-bit weights: the rest is not compared"
            )
    elif start := starting_adapter.folder(options):
        used.append(start)
    for adapter in used:
        use = adapter_use.read(expanded(adapter))
        if use is not None and (changed := base_parts.differing(use.base_parts, now)):
            notes.append(f"adapter {adapter} was trained on another base than {model}, by its "
                         f"{changed}")  # fmt: skip
    return now


@dataclass(frozen=True)
class EarlierRun:
    """The run of `--resume`, its folder locked."""

    folder: RunFolder
    checkpoint: Any  # to go on from, as its store reads it; None: from its start
    changes: tuple[str, ...]  # of its options
    notes: tuple[str, ...]

    @classmethod
    def reopen(
        cls, options: Any, command: str, store: type[Checkpoints], at_end: contextlib.ExitStack
    ) -> "EarlierRun":
        """Locks the folder until `at_end`, and finds its newest whole checkpoint. UserError."""
        folder = RunFolder.reopen(options.resume or "")
        at_end.callback(folder.close)
        folder.checkpoints = store(folder.path, options.keep_checkpoints)
        damaged: list[str] = []
        folder.read_metrics(damaged.append)
        notes: list[str] = []
        checkpoint = newest_recorded(folder, notes)
        if checkpoint is None and folder.checkpoints.steps():
            raise UserError(f"resume {options.resume}: {notes[0]}")
        # which costs no step
        notes += [f"{line}: left out of the record of the run" for line in damaged[:9]]
        table = COMMANDS[command]
        changes = changed(read_toml(folder.path / CONFIG, table), options, table)
        before, now = origin.read(folder.path).code, origin.code_of(options)
        changes += [f"{file} itself" for file in now if before.get(file, now[file]) != now[file]]
        notes += [f"{line}: changed in this resume" for line in changes]
        return cls(folder, checkpoint, tuple(changes), tuple(notes))

    @property
    def step(self) -> int:
        return self.checkpoint.step if self.checkpoint else 0

    @property
    def changed(self) -> set[str]:
        """The options of `changes`."""
        return {line.partition(" ")[0] for line in self.changes}

    def has_finished(self) -> bool:
        """Whether no steps are left. UserError where some are, and its checkpoints are gone."""
        has_ended = self.summary().get("status") == "finished"
        is_longer = not self.changed.isdisjoint(LENGTH)
        if has_ended and is_longer and self.checkpoint is None:
            raise UserError(
                f"resume {self.folder.path}: it has finished and has no checkpoint to continue "
                f"from: start a new run with --adapter {self.folder.path}"
            )
        return has_ended and not is_longer

    def summary(self) -> dict[str, Any]:
        """How it ended, with the paths of a folder that was moved since; {} where that is damaged:
        a run that goes on needs none of it."""
        try:
            found = self.folder.read_summary()
        except ValueError:
            return {}
        before, now = str(Path(str(found.get("report"))).parent), str(self.folder.path)
        return {k: v.replace(before, now) if isinstance(v, str) else v for k, v in found.items()}

    def show(self, view: Terminal) -> None:
        """As at its end, with nothing done."""
        view.resumed(self.folder.read_metrics(lambda damaged: None))
        view.folder = str(self.folder.path)
        view.note("this run has finished: set --max_steps or --episodes higher to continue")
        if self.changes:
            view.note(f"without effect, as no step is left: {', '.join(self.changes)}")
        view.finish(self.summary(), *ending(self.folder, view.note))

    def go_on(self, options: Any, view: Terminal, comments: Sequence[str] = ()) -> None:
        """Once the training is as it was: deletes what came after, writes the config."""
        config = to_toml(replace(options, resume=None), comments)
        write_whole(self.folder.path / CONFIG, config.encode())
        logged = self.checkpoint.logged if self.checkpoint else -1  # no metrics are kept
        version = self.checkpoint.state.policy_version if self.checkpoint else 0
        self.folder.truncate_after(self.step, logged, version)
        code = origin.code_of(options)
        origin.record_resume(self.folder.path, self.step, self.changes, code)
        view.resumed(self.folder.read_metrics())


def newest_recorded(folder: RunFolder, notes: list[str]) -> Any:
    """The newest whole checkpoint, or that before where the record of its step was cut off."""
    whole = folder.checkpoints.whole_ones(notes.append)
    if (newest := next(whole, None)) is None:
        return None
    if not (cut_off := folder.incomplete_record(newest.step, newest.logged)):
        return newest
    before, step = next(whole, None), newest.step
    is_repeated = before is not None and before.step == step - 1
    end = f"step {step} is done again" if is_repeated else f"what it had of step {step} is lost"
    notes.append(f"{cut_off} is incomplete: {end}")
    return before if is_repeated else newest

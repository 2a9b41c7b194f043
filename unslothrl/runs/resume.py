"""Which run `--resume` means, and what is not as it was in that run."""

import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unslothrl.config.offline_options import TABLES
from unslothrl.config.options import SPLITS
from unslothrl.config.toml_files import COMMAND, entries
from unslothrl.config.values import RUN, Table
from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file
from unslothrl.mirror import fetching
from unslothrl.text import plain, redacted_values
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import CONFIG
from unslothrl.weights import adapter_use, base_model, base_parts, starting_adapter

AUTO = "auto"
COMMANDS: dict[str, Table] = {RUN.command: RUN, **TABLES}
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
    if chosen is not None and (fetching.is_url(chosen) or is_in(chosen, mirror)):
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


def is_in(chosen: str, mirror: str | None) -> bool:
    """Whether a folder, or a URL, lies in a mirror."""
    if mirror is None or fetching.is_url(mirror):
        return mirror is not None and chosen.rpartition("/")[0] == mirror
    return Path(chosen).resolve().parent == Path(mirror).resolve()

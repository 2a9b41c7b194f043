"""The adapter that training begins with, of which a run keeps a copy: the folder that was given may
be moved or changed, or be on another machine, when the run goes on."""

import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unslothrl.embedded import BASES, adapter_folder
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, flush_tree, is_file, is_folder
from unslothrl.rewards.model import HEAD_FILE
from unslothrl.text import shown
from unslothrl.weights import adapter_use
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE
from unslothrl.weights.shapes import HUB_ID

START = "start"  # in the run's folder, which is no run's before it is whole
QUANTISED = re.compile(r"(-unsloth)?-bnb-4bit$")
NEEDED = (CONFIG_FILE, WEIGHTS_FILE)
KEPT = (*NEEDED, adapter_use.USE_FILE, HEAD_FILE)  # the last two where they are

Options = Any  # of a run: `model`, `adapter`, and `resume`, the folder of the run that goes on


def folder(options: Options) -> str | None:
    """Where the adapter lies that a run begins with; None where it begins with the bare base."""
    given = adapter_folder(options.adapter)
    if given is None or options.resume is None:
        return given
    return kept(expanded(options.resume)) or given  # a run of an earlier version has no copy


def kept(run: Path) -> str | None:
    """The copy in a run's folder, by its whole path; None where there is none."""
    copy = run.absolute() / START
    return str(copy) if is_folder(copy) else None


def keep(options: Options, run: Path) -> str:
    """Copies the adapter into a new run's folder. -> `print_of` it, "" without one. OSError."""
    given = adapter_folder(options.adapter)
    if given is None:
        return ""
    copy = run / START
    copy.mkdir()
    for path in files_of(expanded(given)):
        shutil.copyfile(path, copy / path.name)
    flush_tree(copy)
    return print_of(copy)


def files_of(folder: Path) -> list[Path]:
    return [folder / name for name in KEPT if name in NEEDED or is_file(folder / name)]


def print_of(folder: Path) -> str:
    """What tells an adapter from another: "12,345 bytes, 8f3a...". OSError where it is none."""
    paths, digest = files_of(folder), hashlib.sha256()
    size = sum(path.stat().st_size for path in paths)
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{size:,} bytes, {digest.hexdigest()[:16]}"


def check(options: Options, begun_with: str) -> None:
    """UserError where a resumed run has another adapter than it began with ("": not known)."""
    start = folder(options)
    if options.resume is None or start is None or not begun_with:
        return
    if not is_file(expanded(start) / CONFIG_FILE) or print_of(expanded(start)) != begun_with:
        copy = expanded(options.resume) / START
        raise UserError(
            f"resume {options.resume}: {start} is not the adapter that the run began with: copy "
            f"that ({options.adapter}) into {copy}, or start a new run with --adapter"
        )


def with_base(user: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The options that a user set, with the adapter's base where no model is named; `notes` gets
    that, or that another one is. UserError."""
    given, name = adapter_folder(user.get("adapter")), user.get("adapter")
    base = base_of(given) if given is not None and user.get("resume") is None else None
    if base is None:
        return {**user}
    if "model" in user:
        if of_weights(base) != of_weights(str(user["model"])):
            notes.append(
                f"adapter {name} was trained on {shown(base)}, and the model is {user['model']}"
            )
        return {**user}
    if base not in BASES and not HUB_ID.fullmatch(base) and not (base and exists(base)):
        raise UserError(f"adapter {name}: no base {shown(base)} here: set --model")
    if base not in BASES:
        notes.append(f"model -> {base}: the base of adapter {name}")
    return {**user, "model": base}


def base_of(adapter: str) -> str | None:
    """What an adapter's base is called; None where its files do not say. UserError."""
    if not is_file(expanded(adapter) / CONFIG_FILE):
        return None  # whatever reads it next says so
    from unslothrl.weights import adapter_check

    use = adapter_use.read(expanded(adapter))
    return use.base if use is not None else adapter_check.check_settings(adapter).base


def of_weights(base: str) -> str:
    """The same for all names of a base: a folder's path, a hub id without its quantiser."""
    if base not in BASES and exists(base):
        return str(expanded(base).resolve())
    return QUANTISED.sub("", base.rpartition("/")[2].lower())


def stages(options: Options, own: str) -> tuple[str, ...]:
    """What has trained the adapters of a run, the oldest first and `own` last. UserError."""
    start, given = folder(options), adapter_folder(options.adapter)
    if start is None or given is None:
        return (own,)
    use = adapter_use.read(expanded(start))
    before = use.stages if use is not None else ()
    named = f"adapter {expanded(given).resolve().name}"
    return (*(before or (named,)), own)

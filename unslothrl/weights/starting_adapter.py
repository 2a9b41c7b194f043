"""The adapter that training begins with, of which a run keeps a copy.

A run that goes on reads the copy, since the folder that was given may have been moved or changed,
or be on another machine.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from unslothrl.embedded import EMBEDDED, adapter_folder
from unslothrl.files import expanded, flush_tree, is_file, is_folder, remove, replace_folder
from unslothrl.rewards.model import HEAD_FILE
from unslothrl.weights import adapter_use
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE

START = "start"  # in the run's folder
KEPT = (CONFIG_FILE, WEIGHTS_FILE, adapter_use.USE_FILE, HEAD_FILE)  # the last two where they are


class Options(Protocol):
    """Of a run: what was given, and the folder of the run that goes on, None for a new one."""

    @property
    def adapter(self) -> str | None: ...

    @property
    def resume(self) -> str | None: ...


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


def keep(options: Options, run: Path) -> None:
    """Copies the adapter into a new run's folder, whole or not at all. OSError."""
    given = adapter_folder(options.adapter)
    if given is None:
        return
    writing = run / f".{START}"
    remove(writing)
    writing.mkdir()
    for name in KEPT:
        if is_file(expanded(given) / name):
            shutil.copyfile(expanded(given) / name, writing / name)
    flush_tree(writing)
    replace_folder(writing, run / START)


def with_base(user: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The options that a user set, and the model of the adapter among them where none is named.
    UserError where the file that says so is damaged."""
    given = adapter_folder(user.get("adapter"))
    if given is None or "model" in user:
        return {**user}
    use = adapter_use.read(expanded(given))
    if use is None:
        return {**user}
    if use.base != EMBEDDED:
        notes.append(f"model -> {use.base}: the base of adapter {user['adapter']}")
    return {**user, "model": use.base}


def stages(options: Options, own: str) -> tuple[str, ...]:
    """What has trained the adapters of a run, the oldest first; `own`: the run itself. UserError
    where the file that says so is damaged."""
    start, given = folder(options), adapter_folder(options.adapter)
    if start is None or given is None:
        return (own,)
    use = adapter_use.read(expanded(start))
    before = use.stages if use is not None else ()
    named = f"adapter {expanded(given).resolve().name}"
    return (*(before or (named,)), own)[-adapter_use.MOST_STAGES :]

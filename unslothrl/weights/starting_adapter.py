"""The adapter that training begins with, of which a run keeps a copy.

A run that goes on reads the copy, since the folder that was given may have been moved or changed,
or be on another machine.
"""

import shutil
from pathlib import Path
from typing import Protocol

from unslothrl.embedded import adapter_folder
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
    kept = expanded(options.resume) / START
    return str(kept) if is_folder(kept) else given  # a run of an earlier version has no copy


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

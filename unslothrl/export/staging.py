"""A folder that is written whole or not at all, also where the disk is full or Ctrl-C comes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unslothrl.errors import UserError
from unslothrl.files import flush_tree, remove


def check_target(target: Path) -> None:
    """UserError unless the folder can be made: not there yet or empty, below a folder."""
    if target.is_symlink() or (target.exists() and not is_empty(target)):
        raise UserError(f"output {target}: it exists already: name a new folder")
    parent = existing(target)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"output {target}: {parent} cannot be written: name another folder")


def is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def existing(target: Path) -> Path:
    """The nearest folder above, or file, that is there."""
    return next(each for each in target.absolute().parents if each.exists())


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A temporary folder, which becomes `target` when the block ends without an error."""
    temporary = existing(target) / f".{target.name}.exporting"
    remove(temporary)  # of an export that was killed
    temporary.mkdir()
    try:
        yield temporary
        flush_tree(temporary)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.rename(target)  # which may be an empty folder
    finally:
        remove(temporary)

"""Files and folders that are whole or absent, whenever the process dies."""

import os
import shutil
from pathlib import Path


def exists(name: str) -> bool:
    """Whether a path that a user gave is there; a name that no file could have is not."""
    try:
        return expanded(name).exists()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def expanded(name: str) -> Path:
    """A path with its ~ replaced, where there is such a user."""
    return Path(os.path.expanduser(name))


def is_file(path: Path) -> bool:
    """Whether a regular file is there; under a name that no file could have, there is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a folder is there; under a name that no folder could have, there is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that is complete whenever it is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def flush_tree(folder: Path) -> None:
    """Brings every file below `folder` onto the disk, so that a later rename cannot overtake it."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("r+b") as file:
                os.fsync(file.fileno())


def replace_folder(source: Path, target: Path) -> None:
    """Renames `source` to `target`. What stood there is moved aside before it is deleted."""
    aside = target.with_name(f".{target.name}.replaced")
    if target.exists():
        target.rename(aside)
    source.rename(target)
    shutil.rmtree(aside, ignore_errors=True)

"""Paths that users give; files and folders that are complete or absent even if the process is
killed; and small files that may hold anything, read without blocking and never beyond a limit."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unslothrl.errors import UserError
from unslothrl.text import shown


def exists(name: str) -> bool:
    """Whether a path that a user gave exists; False for a name that no file can have."""
    return os.path.exists(expanded(name))


def expanded(name: str) -> Path:
    """A path with ~ replaced by the home folder; unchanged if there is no such user."""
    return Path(os.path.expanduser(name))


def home() -> Path | None:
    """The user's home folder, None where there is none: HOME is not set, and nobody has this id."""
    found = expanded("~")
    return found if found.is_absolute() else None


# Unlike the methods of paths, False for a name that nothing can have.
is_file, is_folder = os.path.isfile, os.path.isdir


def leads_out(path: Path, folder: Path) -> bool:
    """Whether a path below `folder` is a link to what lies elsewhere, or nowhere: in a folder that
    somebody else has made it gives away a file of the user's. The hub's cache is made of links from
    snapshots/<revision>/ to the blobs/ beside."""
    if not path.is_symlink():
        return False
    target, own = (Path(os.path.realpath(each)) for each in (path, folder))
    if not target.exists():  # or in a circle
        return True
    allowed = [own]
    for parent in (own, *own.parents):
        if parent.parent.name == "snapshots":
            allowed.append(parent.parents[1] / "blobs")
    return not any(target.is_relative_to(each) for each in allowed)


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Writes a file atomically: under a temporary name, flushed to the disk, then renamed."""
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
    """Flushes every file below `folder`: a later rename cannot reach the disk before them."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("r+b") as file:
                os.fsync(file.fileno())


def replace_folder(source: Path, target: Path) -> None:
    """Renames `source` to `target`; an earlier `target` is moved aside and then deleted."""
    aside = target.with_name(f".{target.name}.replaced")
    if os.path.lexists(target):
        remove(aside)  # of a process that was killed
        target.rename(aside)
    source.rename(target)
    remove(aside)


def put_back(folder: Path) -> None:
    """What `replace_folder` has moved aside in here, where it was killed before another came."""
    for aside in folder.glob(".*.replaced"):
        target = aside.with_name(aside.name[1:].removesuffix(".replaced"))
        if not os.path.lexists(target):
            aside.rename(target)


def documented(page: str) -> str:
    """A page of docs/, of the repository or installed with the package; "" where it is not."""
    package = Path(__file__).parent
    found = (folder / page for folder in (package.parent / "docs", package))
    return next((file.read_text("utf-8") for file in found if file.is_file()), "")


def existing(path: Path) -> Path:
    """The nearest that is there, of a path and the folders above it."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A temporary folder, which becomes `target` when the block ends without an error."""
    temporary = existing(target.parent) / f".{target.name}.unfinished"
    remove(temporary)  # of a process that was killed
    temporary.mkdir()
    try:
        yield temporary
        flush_tree(temporary)
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_folder(temporary, target)
    finally:
        remove(temporary)


def remove(path: Path) -> None:
    """Whatever is there, as far as it can be; of a link the link alone."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """`target` becomes another name of a file; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def newest_numbered(folder: Path, prefix: str) -> Path | None:
    """The entry of a folder with the highest number after `prefix`, None where there is none."""
    if not is_folder(folder):  # also one whose name is too long
        return None
    found = (each for each in folder.glob(f"{prefix}*") if each.name[len(prefix) :].isdecimal())
    return max(found, key=lambda each: int(each.name[len(prefix) :]), default=None)


MOST_BYTES = 256 << 20  # that are read of a file


class Unreadable(UserError, ValueError):
    """A file that is not what it has to be; says which, and why."""


def read_text(path: Path, encoding: str = "utf-8-sig") -> str:
    """The text of a regular file, without Windows's mark. Unreadable."""
    data = read_bytes(path)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path}: byte {error.start} is not UTF-8: fix it") from None


def read_bytes(path: Path) -> bytes:
    """The content of a regular file of at most `MOST_BYTES`. Raises Unreadable."""
    if not is_file(path):  # opening a FIFO would wait for its writer
        raise Unreadable(f"{path}: it is {'a folder' if is_folder(path) else 'not a regular file'}")
    if path.stat().st_size > MOST_BYTES:
        raise Unreadable(f"{path}: it has over {MOST_BYTES:,} bytes")
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(f"{path}: it cannot be read ({error.strerror})") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises Unreadable."""
    text = read_text(path, "utf-8")  # other libraries refuse a mark before JSON
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits
        raise Unreadable(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise Unreadable(f"{path} is damaged: it must be an object, got {shown(value)}")
    return value

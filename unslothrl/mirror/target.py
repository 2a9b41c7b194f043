"""A folder on a file system of fsspec's: what a mirror is copied to and fetched from.

A file there has all of its content or the one before, whenever a copy is cut short: an object store
shows an object when all of it has arrived, elsewhere a file is copied under a temporary name and
renamed. What is read there may be of anybody.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from unslothrl.errors import UserError
from unslothrl.mirror import address

STORES = {"s3", "gs", "hf", "memory", "abfs", "az", "adl", "oss", "oci"}  # of objects
START_S = 30.0  # that a target may take to answer before a run begins
AT_ONCE = 8 << 20  # bytes; a larger file is read in pieces
DEEPEST, MOST_FILES = 8, 1_000_000  # of what a run's folder may have
MOST_NAME = 200  # bytes, so that a temporary name fits too
PART = ".part"  # how temporary names end

T = TypeVar("T")


class Refused(ValueError):
    """What lies in a target is not what a run has there; says what."""


@dataclass(frozen=True)
class Entry:
    """A file or folder there; `name` is relative to the target."""

    name: str
    size: int | None
    kind: str  # file, directory, or anything else

    @property
    def base(self) -> str:
        return self.name.rpartition("/")[2]


def is_name(base: str) -> bool:
    """Whether a file or folder of a run may be called that."""
    return (
        base.isprintable()
        and not set(base) & set("/\\")
        and bool(base.strip("."))
        and (len(base.encode("utf-8", "replace")) <= MOST_NAME)
    )


class Target:
    """Methods raise whatever the file system raises; names are relative, with slashes."""

    def __init__(self, fs: Any, root: str, url: str):
        self.fs, self.root, self.url = fs, root.rstrip("/"), url
        self.has_folders = address.scheme(url) not in STORES
        self.made: set[str] = set()  # folders

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def below(self, name: str) -> "Target":
        return Target(self.fs, self.path(name), f"{self.url}/{name}")

    def entries(self, name: str = "") -> list[Entry]:
        """What lies in a folder, [] if there is none."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(self.path(name), detail=True)
        except FileNotFoundError:
            return []
        return [self._entry(name, info) for info in found if not self._is_itself(name, info)]

    def _is_itself(self, name: str, info: dict) -> bool:
        """Whether it is the marker that some tools leave for a folder in an object store."""
        return str(info["name"]).strip("/") == self.path(name).strip("/")

    def _entry(self, folder: str, info: dict) -> Entry:
        base = str(info["name"]).rstrip("/").rpartition("/")[2]
        if not is_name(base):
            raise Refused(f"{base!a:.100} in {folder or 'it'} is no name of a run's file")
        kind = "link" if info.get("islink") else str(info.get("type"))
        return Entry(f"{folder}/{base}" if folder else base, info.get("size"), kind)

    def walk(self, name: str = "") -> Iterator[Entry]:
        """Everything below a folder that is no folder. Links are not followed. Raises Refused for
        more than a run's folder has."""
        waiting, seen = [name], 0
        while waiting:
            for entry in self.entries(waiting.pop()):
                seen += 1
                if seen > MOST_FILES or entry.name.count("/") >= DEEPEST:
                    raise Refused("it has more files or folders than a run's folder")
                if entry.kind == "directory":
                    waiting.append(entry.name)
                else:
                    yield entry

    def read(self, name: str, most: int) -> bytes | None:
        """The first `most` bytes of a file, None if there is none."""
        try:
            with self.fs.open(self.path(name), "rb") as file:
                return file.read(most)
        except FileNotFoundError:
            return None

    def put(self, local: Path, name: str) -> None:
        """Copies a file; a small one as it is at one instant."""
        if local.stat().st_size <= AT_ONCE:
            self.write(name, local.read_bytes())
        else:
            self._replace(name, lambda path: self.fs.put_file(str(local), path))

    def write(self, name: str, content: bytes) -> None:
        self._replace(name, lambda path: self.fs.pipe_file(path, content))

    def _replace(self, name: str, copy: Callable[[str], None]) -> None:
        path = self.path(name)
        if not self.has_folders:
            copy(path)
            return
        parent, _, base = path.rpartition("/")
        if parent not in self.made:
            self.fs.makedirs(parent, exist_ok=True)
            self.made.add(parent)
        temporary = f"{parent}/.{base}{PART}"
        copy(temporary)
        self.fs.mv(temporary, path)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.path(name))

    def remove_folder(self, name: str) -> None:
        """One that is empty; object stores have none."""
        if self.has_folders:
            self.made.discard(self.path(name))
            with contextlib.suppress(FileNotFoundError):
                self.fs.rmdir(self.path(name))


def opened(option: str, url: str) -> Target:
    """UserError where its package is missing or it cannot be reached."""
    import fsspec

    try:
        fsspec.get_filesystem_class(address.scheme(url))
    except ImportError:
        pip = address.install(url, fsspec.__version__)
        raise UserError(
            f"{option} {url}: its package is not installed: run `{pip}`, or set another target"
        ) from None
    except ValueError:
        raise UserError(
            f"{option} {url}: there is no file system {address.scheme(url)}: set a folder, or a "
            "URL with s3://, gs://, hf:// or sftp://"
        ) from None
    fs, root = asked(option, url, "reached", lambda: fsspec.core.url_to_fs(url))
    return Target(fs, root, url)


def asked(option: str, url: str, verb: str, call: Callable[[], T]) -> T:
    """What a call returns. UserError where it fails, or has not returned after `START_S`."""
    try:
        return within(START_S, call)
    except UserError:
        raise
    except Refused as error:
        raise UserError(f"{option} {url} is refused: {error}") from None
    except Exception as error:  # of any library
        raise UserError(
            f"{option} {url} cannot be {verb} ({address.said(error)}): check it and its "
            f"credentials, which come from the environment ({address.hint(url)})"
            if address.scheme(url) not in address.LOCAL
            else f"{option} {url} cannot be {verb} ({address.said(error)}): set another"
        ) from None


def within(seconds: float, call: Callable[[], T]) -> T:
    """What a call returns, in a thread that is left behind if that takes longer: TimeoutError."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True, name="mirror-start")
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return results[0]

"""A folder that is written whole or not at all, also where the disk is full or Ctrl-C comes."""

import contextlib
import errno
import glob
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from unslothrl.errors import RunError, UserError
from unslothrl.files import flush_tree

FULL = re.compile(
    r"requested and \d+ written|No space left|StorageFull|QuotaExceeded|FileTooLarge"
    r"|os error (28|122|27)"
)
MARGIN = 64 << 20  # bytes besides the weights
UNFINISHED = ".exporting"  # ends the name of a folder that is being written


def check_target(target: Path) -> None:
    """UserError unless the folder can be made: not there yet or empty, below a folder."""
    try:
        if target.is_symlink() or (target.exists() and not is_empty(target)):
            raise UserError(f"output {target}: it exists already: name a new folder")
        parent = existing(target)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"output {str(target)!r:.200}: {reason}: name another folder") from None
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"output {target}: {parent} cannot be written: name another folder")


def is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def existing(target: Path) -> Path:
    """The nearest folder above, or file, that is there."""
    return next(each for each in target.absolute().parents if each.exists())


def check_room(target: Path, size: float) -> None:
    """UserError where so many bytes do not fit on the disk."""
    free = shutil.disk_usage(existing(target)).free
    if free < size + MARGIN:
        raise UserError(
            f"output {target}: it needs {shown(size + MARGIN)} and {shown(free)} are free: free "
            "some space, or name a folder on another disk"
        )


def shown(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


@contextlib.contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, which becomes `target` when the block ends without an
    error. Otherwise nothing is left behind, nor any folder above that was made for it. RunError
    where the disk does not take it."""
    above = existing(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{target.name[:60]}-"
        remove_left_over(target.parent, prefix)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=prefix, suffix=UNFINISHED))
    except OSError as error:
        remove_empty(target.parent, above)
        raise cannot_be_written(target, error) from None
    try:
        with contextlib.ExitStack() as held, interrupted_by_sigterm(), full_disk(target):
            with contextlib.suppress(OSError):  # a disk without locks keeps what is left over
                held.enter_context(locked(temporary))
            temporary.chmod(0o755)
            yield temporary
            for path in temporary.rglob("*"):
                path.chmod(0o755 if path.is_dir() else 0o644)
            flush_tree(temporary)
            if target.exists():
                target.rmdir()
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not target.exists():
            remove_empty(target.parent, above)


def remove_left_over(parent: Path, prefix: str) -> None:
    """Removes what exports to the same place have left that were killed: gigabytes, and hidden."""
    for path in parent.glob(f"{glob.escape(prefix)}*{UNFINISHED}"):
        with contextlib.suppress(OSError), locked(path):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, which a process that has died holds no more. OSError where
    another process has it, or the disk has no locks."""
    import fcntl  # not on every system

    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def full_disk(target: Path | None = None) -> Iterator[None]:
    """Inside it an error of the disk is a RunError."""
    target = target or Path(tempfile.gettempdir())
    try:
        yield
    except Exception as error:
        if FULL.search(str(error)):  # NumPy and safetensors have errors of their own
            error = OSError(errno.ENOSPC, "the disk is full")
        if not isinstance(error, OSError):
            raise
        raise cannot_be_written(target, error) from None


def cannot_be_written(target: Path, error: OSError) -> RunError:
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    return RunError(f"output {target}: {reason}: nothing was kept; name a folder with room")


def remove_empty(folder: Path, above: Path) -> None:
    """Removes `folder` and those over it, up to `above`, that are empty."""
    folder = folder.absolute()
    while folder != above and above in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Inside it SIGTERM is as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

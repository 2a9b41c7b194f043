"""One process at a time trains into a run's folder.

A record lock (`fcntl.lockf`) on the file `.lock`: the system gives it up when its process ends,
however it ends, and children do not inherit it. The file says who holds it. On a file system
without such locks (some FUSE mounts) what the file says decides, as far as this machine can tell.

The process that holds a lock must not open the file again: closing it would give the lock up.
"""

import errno
import fcntl
import json
import os
import platform
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, ClassVar

from unslothrl.errors import UserError
from unslothrl.untrusted import Unreadable, read_object

LOCK = ".lock"
BUSY = (errno.EACCES, errno.EAGAIN)
MOST_BYTES = 4096


class RunLock:
    """Held until `release`, or until this process ends."""

    of_this_process: ClassVar[set[Path]] = set()  # folders; the system would let it take one twice

    def __init__(self, folder: Path, file: BinaryIO):
        self.folder, self.file = folder, file
        self.of_this_process.add(folder)

    @classmethod
    def take(cls, folder: Path) -> "RunLock":
        """UserError where another run trains into the folder; OSError where it cannot be
        written."""
        folder = folder.resolve()
        path = folder / LOCK
        if folder in cls.of_this_process:
            raise in_use(folder, own_name())
        while True:
            file = opened(path)
            if not is_locked(file) or is_alive(holder(path)):
                file.close()
                raise in_use(folder, holder(path))
            with suppress(FileNotFoundError):
                if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                    break
            file.close()  # of a run that was refused meanwhile
        file.truncate(0)
        file.write(json.dumps(own_name()).encode("ascii"))
        file.flush()
        return cls(folder, file)

    @classmethod
    def is_free(cls, folder: Path) -> bool:
        """Whether a run could train into the folder."""
        try:
            lock = cls.take(folder)
        except (UserError, OSError):
            return False
        lock.release()
        return True

    def release(self) -> None:
        """The folder is free for other processes."""
        self.of_this_process.discard(self.folder)
        if self.file.closed:
            return
        with suppress(OSError):
            self.file.truncate(0)  # this process may go on for long
        self.file.close()

    def discard(self) -> None:
        """`release`, for a run that is refused before it begins: the file goes too."""
        with suppress(OSError):
            (self.folder / LOCK).unlink()
        self.release()


def opened(path: Path) -> BinaryIO:
    """The file, made if it is missing. UserError for a link or a pipe, which somebody else has put
    there: what it leads to would be emptied."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = open(os.open(path, flags, 0o666), "r+b", buffering=0)  # noqa: SIM115  # kept
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError(f"{path} is a link: remove it") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UserError(f"{path} is not a regular file: remove it")
    return file


def is_locked(file: BinaryIO) -> bool:
    """Locks a file, where the file system knows locks; False where another process has."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in BUSY
    return True


def in_use(folder: Path, by: dict) -> UserError:
    return UserError(
        f"{folder} is in use by process {by.get('pid', '?')} on host {by.get('host', '?')}: wait "
        "until that run has ended, or end it"
    )


def own_name() -> dict[str, str | int]:
    return {"pid": os.getpid(), "host": platform.node(), "started": start_of(os.getpid())}


def holder(path: Path) -> dict:
    """What the lock file says, {} where it says nothing."""
    try:
        return read_object(path, MOST_BYTES)
    except Unreadable:
        return {}


def is_alive(named: dict) -> bool:
    """Whether that process of this machine still runs; False for one of another machine."""
    pid, started = named.get("pid"), named.get("started")
    if named.get("host") != platform.node() or not isinstance(pid, int) or pid == os.getpid():
        return False
    return bool(started) and start_of(pid) == started


def start_of(pid: int) -> str:
    """When a process started, in ticks since the machine did; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""

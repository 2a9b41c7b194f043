"""The files of adapter versions that vLLM reads, written once on a node for all its processes.

vLLM up to 0.32 loads an adapter from a folder and has no interface for tensors; what others do
about it replaces its `WorkerLoRAManager._load_adapter`, which has changed with every release. A
folder in memory (/dev/shm) costs one copy a node, and serves several workers of one engine as well;
vLLM maps the file, and changes nothing in it.

What exists is changed only under the lock of the folder. Everyone who uses a version holds a shared
lock (flock) on a file beside it, which the kernel releases when the process ends, however it ends;
what nobody holds is removed by whoever has the folder's lock next.
"""

import fcntl
import itertools
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash
from filelock import FileLock, Timeout

from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE, Adapter

PATIENCE_S = 5.0  # with another process that writes, or hangs while it writes
POLL_S = 0.002
ROOM = "unslothrl-"  # what the name of a run's folder begins with
COPIES = itertools.count()  # that processes have had to make for themselves
CHANGING, IN_USE, USED, WRITING, FOLDER = "changing", "in-use", ".used", ".writing", "adapters"


@dataclass(frozen=True)
class Held:
    """A version's folder; it stays as long as `lock`, a file descriptor, is open."""

    folder: Path
    lock: int


class NodeFiles:
    """The versions in `room`/adapters, which is that of other processes of the node too.

    Rooms beside it that are named as `ROOM` says are removed where every process that used them
    has ended: a run that was killed leaves its own.
    """

    def __init__(self, room: Path, patience_s: float = PATIENCE_S):
        self.room, self.folder, self.held = room, room / FOLDER, list[Held]()
        remove_abandoned(room)
        path = self.folder / CHANGING
        self.changing = FileLock(path, timeout=patience_s, poll_interval=POLL_S, mode=0o600)
        while True:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError), self.changing:  # removed in between
                self.in_use = shared(self.folder / IN_USE)
                return

    def hold(self, adapter: Adapter, is_own: bool = False) -> Held:
        """The version's folder in PEFT's format, until it is released; `is_own`: one that is not
        there yet, for this object alone. OSError if it cannot be written."""
        of_config = xxhash.xxh3_64_hexdigest(adapter.config.encode())[:8]
        folder = self.folder / f"v{adapter.version:06d}-{adapter.checksum[:16]}-{of_config}"
        own = folder.with_name(f"{folder.name}-{os.getpid()}-{next(COPIES)}")
        try:
            with self.changing:
                self._remove_unused()
                held = self._written(adapter, own if is_own else folder)
        except Timeout:  # another process hangs, and it may be for ever: a copy of one's own
            held = self._written(adapter, own)
        self.held.append(held)
        return held

    def _written(self, adapter: Adapter, folder: Path) -> Held:
        held = Held(folder, shared(used(folder)))
        try:
            if not folder.exists():
                write(adapter, folder)
        except BaseException:
            os.close(held.lock)
            used(folder).unlink()
            raise
        return held

    def is_whole(self, held: Held, adapter: Adapter) -> bool:
        """Whether the folder still has what was written, for who could not read it."""
        try:
            weights = (held.folder / WEIGHTS_FILE).read_bytes()
            config = (held.folder / CONFIG_FILE).read_bytes()
        except OSError:
            return False
        return weights == bytes(adapter.weights) and config == adapter.config.encode()

    def release(self, held: Held) -> None:
        """The folder is not used here any more."""
        self.held.remove(held)
        os.close(held.lock)
        with suppress(Timeout), self.changing:  # else it is removed by the next to come
            self._remove_unused()

    def _remove_unused(self) -> None:
        for path in self.folder.glob(f"*{USED}"):
            if is_unused(path):
                for ending in ("", WRITING):
                    shutil.rmtree(path.with_suffix(ending), ignore_errors=True)
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Releases everything; the last process to do so removes the room's files."""
        for held in list(self.held):
            self.release(held)
        os.close(self.in_use)
        with suppress(Timeout, OSError), self.changing:
            if is_unused(self.folder / IN_USE):
                shutil.rmtree(self.folder, ignore_errors=True)
                self.room.rmdir()  # if nothing else is in it


def write(adapter: Adapter, folder: Path) -> None:
    """Whole or not at all; nothing is flushed to a disk, for it need not outlive the machine."""
    temporary = folder.with_name(folder.name + WRITING)
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    try:
        temporary.mkdir(mode=0o700)
        (temporary / CONFIG_FILE).write_text(adapter.config, encoding="utf-8")
        with (temporary / WEIGHTS_FILE).open("wb", buffering=0) as file:
            left = adapter.weights
            while left:
                left = left[file.write(left) :]
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_abandoned(room: Path) -> None:
    """Removes the rooms of other runs that no process uses."""
    for path in room.parent.glob(f"{ROOM}*/{FOLDER}"):
        if path.parent != room and is_unused(path / IN_USE):
            shutil.rmtree(path.parent, ignore_errors=True)


def used(folder: Path) -> Path:
    return folder.with_name(folder.name + USED)


def shared(path: Path) -> int:
    """A shared lock on a file, which is made if it is missing. -> its descriptor, which a program
    that is started does not inherit."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def is_unused(path: Path) -> bool:
    """Whether no process holds a lock on a file."""
    with suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False

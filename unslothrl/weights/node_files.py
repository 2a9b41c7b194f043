"""The files of adapter versions that vLLM reads, written once on a node for all its processes.

vLLM up to 0.32 loads an adapter from a folder and has no interface for tensors; what others do
about it replaces its `WorkerLoRAManager._load_adapter`, which has changed with every release. A
folder in memory (/dev/shm) costs one copy a node, and serves several workers of one engine as well;
vLLM maps the file, and changes nothing in it.

Whoever needs a version first writes it. Everyone who uses it holds a shared lock on a file beside
it (flock), which the kernel releases when the process ends, however it ends. What nobody holds is
removed by the last to release it, or by the next to come.
"""

import contextlib
import fcntl
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from unslothrl.policy_version import Adapter
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE

PATIENCE_S = 5.0  # with another process that writes, or hangs while it writes
POLL_S = 0.002
ROOM = "unslothrl-"  # what the name of a run's folder begins with
COPIES = itertools.count()  # that processes have had to make for themselves
LOCK, WRITING, IN_USE, FOLDER = ".lock", ".writing", "in-use", "adapters"


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
        self.room, self.patience_s = room, patience_s
        self.folder = room / FOLDER
        remove_abandoned(room)
        self.in_use = self._join()
        self.held: list[Held] = []

    def _join(self) -> int:
        """-> the lock that says that this room is used."""
        while True:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # removed in between
                lock = opened(self.folder / IN_USE)
                fcntl.flock(lock, fcntl.LOCK_SH)
                if is_at(lock, self.folder / IN_USE):
                    return lock
                os.close(lock)

    def hold(self, adapter: Adapter, is_own: bool = False) -> Held:
        """The version's folder in PEFT's format, until it is released; `is_own`: one that is not
        there yet, for this object alone. OSError if it cannot be written."""
        of_config = xxhash.xxh3_64_hexdigest(adapter.config.encode())[:8]
        name = f"v{adapter.version:06d}-{adapter.checksum[:16]}-{of_config}"
        self._remove_unused(name)
        held = None if is_own else self._hold(name, adapter)
        if held is None:  # another process hangs, and it may be for ever: a copy of one's own
            held = self._hold(f"{name}-{os.getpid()}-{next(COPIES)}", adapter)
        if held is None:
            raise TimeoutError(f"{self.folder} is not to be locked within {self.patience_s:g} s")
        self.held.append(held)
        return held

    def _hold(self, name: str, adapter: Adapter) -> Held | None:
        """None where that took too long."""
        folder, deadline = self.folder / name, time.monotonic() + self.patience_s
        while True:
            lock = opened(lock_of(folder))
            try:
                is_shared = locked(lock, fcntl.LOCK_SH, deadline)
                if is_shared and is_at(lock, lock_of(folder)) and folder.exists():
                    held, lock = Held(folder, lock), -1
                    return held
                if not is_shared or not locked(lock, fcntl.LOCK_EX, deadline):
                    return None
                if is_at(lock, lock_of(folder)) and not folder.exists():
                    write(adapter, folder)
            finally:
                if lock >= 0:
                    os.close(lock)
            # Now it is there, and perhaps gone again: nothing was locked for a moment.

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
        try:
            remove_if_unused(held.folder, held.lock)
        finally:
            os.close(held.lock)

    def _remove_unused(self, but: str) -> None:
        """What processes have left that were killed."""
        for path in self.folder.glob(f"*{LOCK}"):
            if path.name != but + LOCK:
                with contextlib.suppress(OSError), again(path) as lock:
                    remove_if_unused(path.with_name(path.name.removesuffix(LOCK)), lock)

    def close(self) -> None:
        """Releases everything; the last process to do so removes the room's files."""
        for held in list(self.held):
            self.release(held)
        with contextlib.suppress(OSError):
            if locked(self.in_use, fcntl.LOCK_EX):
                shutil.rmtree(self.folder, ignore_errors=True)
                self.room.rmdir()  # if nothing else is in it
        os.close(self.in_use)


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
    for path in room.parent.glob(f"{ROOM}*/{FOLDER}/{IN_USE}"):
        if path.parents[1] != room:
            with contextlib.suppress(OSError), again(path) as lock:
                if locked(lock, fcntl.LOCK_EX) and is_at(lock, path):
                    shutil.rmtree(path.parents[1], ignore_errors=True)


def remove_if_unused(folder: Path, lock: int) -> None:
    """Removes a version that no other process holds; `lock` is exclusive then."""
    if locked(lock, fcntl.LOCK_EX) and is_at(lock, lock_of(folder)):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder.with_name(folder.name + WRITING), ignore_errors=True)
        lock_of(folder).unlink()


def lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + LOCK)


def opened(path: Path) -> int:
    """The file, made if it is missing; a program that is started does not inherit it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def again(path: Path) -> Iterator[int]:
    """A file that exists, opened anew: a lock is of one opening. OSError where it is gone."""
    lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield lock
    finally:
        os.close(lock)


def locked(lock: int, kind: int, deadline: float = 0.0) -> bool:
    """Whether the lock was taken by then, or at once. Where not, a lock that was held is lost."""
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)


def is_at(lock: int, path: Path) -> bool:
    """Whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False

"""The files of adapter versions that vLLM reads, in memory once on a node for all its processes.

vLLM up to 0.32 loads an adapter from a folder and has no interface for tensors; what others do
about it replaces its `WorkerLoRAManager._load_adapter`, which has changed with every release. A
folder in memory (/dev/shm) costs one copy a node, and serves several workers of one engine as well;
vLLM maps the file, and changes nothing in it.

Each process has a folder of its own, in which a version that another one has written already is a
second name of the same file: the kernel frees it with its last name. A process holds a lock (flock)
on its folder, which the kernel releases however it ends, and whoever comes next removes the folders
that nobody holds.
"""

import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unslothrl.files import link_or_copy
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE, Adapter

ROOM, OWN = "unslothrl-", "adapters-"  # how the folders of a run and of a process are called
COPIES = itertools.count()
WRITING = ".writing"


class NodeFiles:
    """The versions that a process uses, in a folder of its own in `room`, which a run's share."""

    def __init__(self, room: Path):
        self.room, self.held = room, list[Path]()
        room.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_abandoned(room)
        with locked(room):
            self.folder = Path(tempfile.mkdtemp(prefix=OWN, dir=room))
            self.in_use = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(self.in_use, fcntl.LOCK_SH)

    def hold(self, adapter: Adapter, is_own: bool = False) -> Path:
        """The version's folder in PEFT's format, there until it is released; `is_own`: without what
        others have written. OSError."""
        name = f"v{adapter.version:06d}-{adapter.checksum[:16]}"
        folder = self.folder / f"{name}-{next(COPIES)}"
        folder.mkdir()
        weights, writing = folder / WEIGHTS_FILE, folder / WRITING
        try:
            (folder / CONFIG_FILE).write_text(adapter.config, encoding="utf-8")
            with locked(self.room):
                written = self.room.glob(f"{OWN}*/{name}-*/{WEIGHTS_FILE}")
                if not is_own and (linked := next(written, None)) is not None:
                    link_or_copy(linked, weights)
                else:
                    writing.write_bytes(adapter.weights)
                    writing.rename(weights)
        finally:
            if not weights.exists():
                shutil.rmtree(folder)
        self.held.append(folder)
        return folder

    def is_whole(self, held: Path, adapter: Adapter) -> bool:
        """Whether the folder still has what was written, for who could not read it."""
        content = {CONFIG_FILE: adapter.config.encode(), WEIGHTS_FILE: bytes(adapter.weights)}
        files = {held / name: value for name, value in content.items()}
        return all(file.exists() and file.read_bytes() == value for file, value in files.items())

    def release(self, held: Path) -> None:
        """The folder is not used here any more."""
        self.held.remove(held)
        with locked(self.room):
            shutil.rmtree(held, ignore_errors=True)

    def close(self) -> None:
        """Releases everything; the last process removes the room, if nothing else is in it."""
        self.held.clear()
        with locked(self.room):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not any(self.room.iterdir()):
                self.room.rmdir()
        os.close(self.in_use)


def remove_abandoned(room: Path) -> None:
    """Removes the folders of processes that have ended, and rooms of other runs with them."""
    for each in room.parent.glob(f"{ROOM}*"):
        if folders := [*each.glob(f"{OWN}*")]:
            with suppress(FileNotFoundError), locked(each):  # another one removes it as well
                dead = [folder for folder in folders if is_unused(folder)]
                for path in [each] if len(dead) == len(folders) and each != room else dead:
                    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def locked(folder: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """With a lock on a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def is_unused(folder: Path) -> bool:
    """Whether no process holds a lock on a folder."""
    with suppress(OSError), locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
        return True
    return False

"""The files of adapter versions that vLLM reads, in a folder of the process that serves them.

vLLM up to 0.32 loads an adapter from a folder and has no interface for tensors; what others do
about it replaces its `WorkerLoRAManager._load_adapter`, which has changed with every release. A
folder in memory (/dev/shm) costs one copy, and serves several workers of one engine as well; vLLM
maps the file, and changes nothing in it.

A process holds a lock (flock) on its folder, which the kernel releases however it ends, and whoever
comes next removes the folders that nobody holds.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE, Adapter

ROOM, OWN = "unslothrl-", "adapters-"  # how the folders of a run and of a process are called


class NodeFiles:
    """The versions that a process uses, in a folder of its own in `room`, which a run's share."""

    def __init__(self, room: Path):
        self.room = room
        room.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_abandoned(room)
        with locked(room):
            self.folder = Path(tempfile.mkdtemp(prefix=OWN, dir=room))
            self.in_use = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(self.in_use, fcntl.LOCK_SH)

    def hold(self, adapter: Adapter) -> Path:
        """A folder with the version in PEFT's format, there until it is released. OSError."""
        held = Path(tempfile.mkdtemp(prefix=f"v{adapter.version:06d}-", dir=self.folder))
        (held / CONFIG_FILE).write_text(adapter.config, encoding="utf-8")
        (held / WEIGHTS_FILE).write_bytes(adapter.weights)
        return held

    def release(self, held: Path) -> None:
        """The folder is not used here any more."""
        shutil.rmtree(held, ignore_errors=True)

    def close(self) -> None:
        """Releases everything; the last process removes the room, if nothing else is in it."""
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

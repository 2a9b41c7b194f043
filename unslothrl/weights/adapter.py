"""Adapter versions on disk: PEFT's format, written whole or not at all.

vLLM up to 0.32 loads an adapter from a folder and has no interface for tensors; what others do
about it replaces its `WorkerLoRAManager._load_adapter`, which has changed with every release. A
folder in memory (/dev/shm) of the process that serves it costs one copy, and serves several workers
of one engine as well; vLLM maps the file, and changes nothing in it.

A process holds a lock (flock) on its folder, which the kernel releases however it ends, and whoever
comes next removes the folders that nobody holds.
"""

import fcntl
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsIndex

import xxhash

from unslothrl.errors import AdapterDamaged
from unslothrl.files import link_or_copy, staged
from unslothrl.system.variables import SCRATCH


@dataclass(frozen=True, slots=True)
class Adapter:
    """An immutable policy version: the LoRA in PEFT's format, bfloat16, as it travels.

    Pickled with protocol 5, as Ray does, the weights are a buffer of their own: Ray writes it into
    its object store once, a node fetches it once, and every process there reads it in place.
    """

    version: int
    weights: memoryview  # bytes that nobody can change: the content of adapter_model.safetensors
    config: str  # the content of adapter_config.json
    checksum: str  # of `weights`: XXH3 of 128 bits, in hexadecimal

    @classmethod
    def of(
        cls, version: int, weights: bytes | memoryview, config: str, checksum: str | None = None
    ) -> "Adapter":
        """`checksum`: of one that was published elsewhere."""
        checksum = checksum or xxhash.xxh3_128_hexdigest(weights)
        return cls(version, memoryview(weights).cast("B").toreadonly(), config, checksum)

    def verify(self) -> None:
        """Raises AdapterDamaged if the weights are not those that were published."""
        if (found := xxhash.xxh3_128_hexdigest(self.weights)) != self.checksum:
            raise AdapterDamaged(
                f"adapter v{self.version} arrived damaged: its checksum is {found[:12]}, "
                f"it was published with {self.checksum[:12]}"
            )

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        apart = int(protocol) >= 5
        weights = pickle.PickleBuffer(self.weights) if apart else bytes(self.weights)
        return Adapter.of, (self.version, weights, self.config, self.checksum)


CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
CARD_FILE = "README.md"


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """What the versions of a run have in common."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # (PEFT's name, shape), in order
    config: str  # the content of adapter_config.json


@dataclass(frozen=True)
class Beside:
    """What lies in the folder of every adapter of a run besides its settings and weights."""

    files: Mapping[str, Path] = field(default_factory=dict)  # name, folder/name -> its source
    contents: Mapping[str, bytes] = field(default_factory=dict)  # name -> content
    base: str | None = None  # the folder among them that has the adapter's base
    card: Callable[[int], str] | None = None  # the model card of a version


def write_adapter(
    adapter: Adapter, parent: Path, beside: Beside = Beside(), earlier: Path | None = None
) -> Path:
    """Writes `parent`/v000012 for version 12 and returns it; replaces what stood there. What does
    not change is linked from `earlier`, another version's folder with the same files."""
    target = parent / f"v{adapter.version:06d}"
    with staged(target) as temporary:
        config = adapter.config
        if beside.base is not None:
            config = with_base(config, str(target.absolute() / beside.base))
        (temporary / CONFIG_FILE).write_text(config, "utf-8")
        (temporary / WEIGHTS_FILE).write_bytes(adapter.weights)
        for name, source in beside.files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            if earlier is not None and (earlier / name).exists():
                link_or_copy(earlier / name, temporary / name)
            else:
                shutil.copyfile(source, temporary / name)
        for name, content in beside.contents.items():
            (temporary / name).write_bytes(content)
        if beside.card is not None:
            (temporary / CARD_FILE).write_text(beside.card(adapter.version), "utf-8")
    return target


def with_base(config: str, base: str) -> str:
    """The content of adapter_config.json, with another name of the base."""
    settings = {**json.loads(config), "base_model_name_or_path": base}
    return json.dumps(settings, indent=2, sort_keys=True)


ROOM, OWN = "unslothrl-", "adapters-"  # how the folders of a run and of a process are called


def adapter_room() -> str | None:
    """Where versions are written for vLLM to read: memory if it has room, else the disk.

    A driver that may have to kill this process names a folder in SCRATCH and removes it itself.
    """
    scratch = os.environ.get(SCRATCH)
    if scratch:
        Path(scratch).mkdir(parents=True, exist_ok=True)
        return scratch
    shm = Path("/dev/shm")
    return str(shm) if shm.is_dir() and shutil.disk_usage(shm).free > 2**30 else None


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

"""The checkpoints of a stage: those of transformers' Trainer, each whole or absent.

checkpoints/step_000010/    what the Trainer writes (adapter, optimiser, schedule, random numbers,
                            position), and SHA256SUMS of it, which `sha256sum --check` reads
checkpoints/latest          the name of the newest
checkpoints/best            the name of the one with the best evaluation
"""

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from unslothrl.checkpoints.store import (
    BEST,
    LATEST,
    OF_STEP,
    SUMS,
    Damaged,
    check_sum,
    opened,
)
from unslothrl.files import flush_tree, remove, replace_folder, write_whole
from unslothrl.untrusted import Unreadable, read_bytes

STATE = "trainer_state.json"
MOST_NAME, MOST_STATE = 4096, 64 << 20  # bytes
TRAINING_ARGS = "training_args.bin"  # a pickle of the Trainer's, which nothing reads
OS_ERROR = re.compile(r"\(os error (\d+)\)")  # safetensors' words
TORCH_WRITER = ("inline_container.cc", "PytorchStreamWriter", "iostream error")
WRITING = ".writing"  # the Trainer's output folder


class StageCheckpoints:
    """Of one run. Methods raise OSError where the disk is full or cannot be reached."""

    def __init__(self, run: Path, keep: int):
        """`keep`: the newest that are kept, beside the one with the best evaluation."""
        self.folder, self.keep = run / "checkpoints", keep
        self.writing = self.folder / WRITING

    def steps(self) -> list[int]:
        """After which there is one, ascending."""
        folders = (path for path in self.folder.glob("step_*") if path.is_dir())
        names = (path.name for path in folders if OF_STEP.fullmatch(path.name))
        return sorted(int(name.removeprefix("step_")) for name in names)

    def seal(self, written: Path, step: int, is_best: bool) -> Path:
        """What the Trainer has written, summed, flushed and renamed. -> its folder."""
        (written / TRAINING_ARGS).unlink(missing_ok=True)
        files = sorted(path for path in written.rglob("*") if path.is_file())
        lines = [f"{sum_of(path)}  {path.relative_to(written)}\n" for path in files]
        (written / SUMS).write_text("".join(lines))
        flush_tree(written)
        target = self.of_step(step)
        replace_folder(written, target)
        if is_best:
            self.mark_best(step)
        write_whole(self.folder / LATEST, f"{target.name}\n".encode())
        self._delete_older()
        return target

    def _delete_older(self) -> None:
        best = self.best()
        for step in self.steps()[: -self.keep]:
            if self.of_step(step) != best:
                remove(self.of_step(step))

    def mark_best(self, step: int) -> None:
        """Has the one of a step kept."""
        write_whole(self.folder / BEST, f"{self.of_step(step).name}\n".encode())

    def best(self) -> Path | None:
        """The one with the best evaluation."""
        with contextlib.suppress(Unreadable, OSError):
            name = read_bytes(self.folder / BEST, MOST_NAME).decode(errors="replace").strip()
            if OF_STEP.fullmatch(name) and (self.folder / name).is_dir():
                return self.folder / name
        return None

    def newest(
        self, note: Callable[[str], None], look: Callable[[Path], None] = lambda folder: None
    ) -> Path | None:
        """The newest that is whole, None if none is. `note` gets a line for each newer one; `look`
        raises Damaged for one that cannot be used though its checksums fit."""
        for step in reversed(self.steps()):
            folder = self.of_step(step)
            try:
                check(folder)
                look(folder)
            except (ValueError, OSError) as error:
                said = error.strerror if isinstance(error, OSError) else error
                note(f"checkpoint {folder.name} is damaged ({said})")
            else:
                return folder
        return None

    def abandoned(self, error: Exception) -> Exception:
        """Frees what an unfinished checkpoint holds of the disk. -> the error, or what it says of
        the disk as an OSError: the libraries that write a checkpoint raise errors of their own."""
        with contextlib.suppress(OSError):
            remove(self.writing)
        return disk_error(error, self.folder) or error

    def delete_after(self, step: int) -> None:
        """Those of later steps, and what was being written."""
        remove(self.writing)
        for later in self.steps():
            if later > step:
                remove(self.of_step(later))

    def of_step(self, step: int) -> Path:
        return self.folder / f"step_{step:06d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def check(folder: Path) -> None:
    """Raises Damaged where a file is missing, added, or is not what was written; OSError."""
    names = {*names_in(folder), SUMS}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if not path.is_dir() and name not in names and not name.startswith("."):
            raise Damaged(f"{name} is not listed in {SUMS}")
    for name in names - {SUMS}:
        with opened(folder / name) as file:
            check_sum(folder, name, hashlib.file_digest(file, "sha256").hexdigest())
    try:
        state = json.loads(read_bytes(folder / STATE, MOST_STATE))
    except (Unreadable, ValueError, RecursionError) as error:
        raise Damaged(f"{STATE}: {error}") from None
    if not isinstance(state, dict) or state.get("global_step") != step_of(folder):
        raise Damaged(f"{STATE} is of another step")


def names_in(folder: Path) -> Iterator[str]:
    """The files that its SHA256SUMS lists, which all lie inside of it. Raises Damaged."""
    try:
        lines = read_bytes(folder / SUMS, MOST_STATE).decode("ascii").splitlines()
    except (Unreadable, UnicodeDecodeError) as error:
        raise Damaged(f"{SUMS}: {error}") from None
    names = [line.partition("  ")[2] for line in lines]
    if STATE not in names:
        raise Damaged(f"{SUMS} does not list {STATE}")
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Damaged(f"{SUMS} lists {name}")
        yield name


def disk_error(error: BaseException | None, folder: Path) -> OSError | None:
    """The error of a disk that is behind one of torch's or safetensors'; None: there is none."""
    while error is not None:
        said = str(error)
        if isinstance(error, OSError) and error.errno:
            return error
        if found := OS_ERROR.search(said):
            number = int(found[1])
            return OSError(number, os.strerror(number), str(folder))
        if any(word in said for word in TORCH_WRITER):
            return OSError(errno.ENOSPC, "the disk is full, or has an error", str(folder))
        error = error.__cause__ or error.__context__
    return None


def sum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""The checkpoints of a stage: what transformers' Trainer writes (adapter, optimiser, schedule,
random numbers, position), kept as those of RL are."""

import contextlib
import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from unslothrl.checkpoints.store import SUMS, CheckpointStore, Damaged, sums_in
from unslothrl.files import read_object, remove

STATE = "trainer_state.json"
MOST_STATE = 64 << 20  # bytes
TRAINING_ARGS = "training_args.bin"  # a pickle of the Trainer's, which nothing reads
PICKLES = (".bin", ".pkl", ".pickle")  # which are not loaded; the Trainer reads .pt and .pth safely
OS_ERROR = re.compile(r"\(os error (\d+)\)")  # safetensors' words
TORCH_WRITER = ("inline_container.cc", "PytorchStreamWriter", "iostream error")
WRITING = ".writing"  # the Trainer's output folder


@dataclass(frozen=True)
class StageCheckpoint:
    """One that was whole when it was found."""

    folder: Path
    step: int

    @property
    def logged(self) -> int:
        """The last step whose metrics are recorded before it is written."""
        return self.step


class StageCheckpoints(CheckpointStore):
    """Of one run; `read` gives a `StageCheckpoint`."""

    @property
    def writing(self) -> Path:
        return self.folder / WRITING

    def seal(self, written: Path, step: int, is_best: bool) -> Path:
        (written / TRAINING_ARGS).unlink(missing_ok=True)
        return super().seal(written, step, is_best)

    def read(self, folder: Path, step: int) -> StageCheckpoint:
        names = sums_in(folder).keys()
        for path in folder.rglob("*"):
            name = str(path.relative_to(folder))
            if path.is_file() and name not in names | {SUMS} and not path.name.startswith("."):
                raise Damaged(f"{name} is not listed in {SUMS}")
            if path.suffix in PICKLES and name != TRAINING_ARGS:
                raise Damaged(f"{name} is a pickle, which is not loaded")
        if read_object(folder / STATE, MOST_STATE).get("global_step") != step:
            raise Damaged(f"{STATE} is of another step")
        return StageCheckpoint(folder, step)

    def delete_after(self, step: int) -> None:
        remove(self.writing)
        super().delete_after(step)

    def abandoned(self, error: BaseException) -> BaseException:
        """Frees what an unfinished checkpoint holds of the disk. -> the error, or what it says of
        the disk as an OSError: the libraries that write a checkpoint raise errors of their own."""
        with contextlib.suppress(OSError):
            remove(self.writing)
        return disk_error(error, self.folder) or error


def disk_error(error: BaseException | None, folder: Path) -> OSError | None:
    """The error of a disk that is behind one of torch's or safetensors'; None: there is none."""
    while error is not None:
        said = str(error)
        if isinstance(error, OSError) and error.errno:
            return error
        if found := OS_ERROR.search(said):
            return OSError(int(found[1]), os.strerror(int(found[1])), str(folder))
        if any(word in said for word in TORCH_WRITER):
            return OSError(errno.ENOSPC, "the disk is full, or has an error", str(folder))
        error = error.__cause__ or error.__context__
    return None

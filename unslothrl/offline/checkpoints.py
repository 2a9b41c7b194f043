"""The checkpoints of a stage: what transformers' Trainer writes (adapter, optimiser, schedule,
random numbers, position), kept as those of RL are."""

from dataclasses import dataclass
from pathlib import Path

from unslothrl.checkpoints.store import SUMS, CheckpointStore, Damaged, sums_in
from unslothrl.files import read_object, remove

STATE = "trainer_state.json"
MOST_STATE = 64 << 20  # bytes
TRAINING_ARGS = "training_args.bin"  # a pickle of the Trainer's, which nothing reads
PICKLES = (".bin", ".pkl", ".pickle")  # which are not loaded; the Trainer reads .pt and .pth safely
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

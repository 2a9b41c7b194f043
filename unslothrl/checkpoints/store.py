"""The checkpoints in a run's folder: each is complete or absent, and checked when it is read.

checkpoints/step_000010/    learner.safetensors, progress.json and ahead.jsonl if anything was
                            generated ahead; of SFT, DPO and reward models what the Trainer writes;
                            and SHA256SUMS of them, which `sha256sum --check` reads
checkpoints/latest          the name of the newest
checkpoints/best            the name of the one with the best evaluation
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.checkpoints import run_state
from unslothrl.checkpoints.run_state import Ahead, RunState
from unslothrl.files import Unreadable, flush_tree, read_bytes, remove, replace_folder, write_whole

LATEST, BEST = "latest", "best"
LEARNER, PROGRESS, SUMS = "learner.safetensors", "progress.json", "SHA256SUMS"
AHEAD = "ahead.jsonl"
OF_STEP = re.compile("step_([0-9]{6}|[1-9][0-9]{6,})")  # names of what belongs to a step
KEPT = 2  # the older one is for where the newest is damaged

UNREADABLE = (ValueError, TypeError, RecursionError, OSError)

Note = Callable[[str], None]


class Damaged(ValueError):
    """A checkpoint that is not as it was written; says what differs."""


@dataclass(frozen=True)
class Checkpoint:
    """One that was whole when it was found."""

    folder: Path
    state: RunState
    ahead: tuple[Ahead, ...] = ()  # what was drawn ahead and is complete

    @property
    def step(self) -> int:
        return self.state.step

    @property
    def logged(self) -> int:
        """The last step whose metrics are recorded."""
        return self.step - (self.state.unlogged is not None)

    def learner(self) -> bytes:
        """What `Learner.save_state` gave. Raises Damaged, OSError."""
        content = (self.folder / LEARNER).read_bytes()
        if hashlib.sha256(content).hexdigest() not in sums_in(self.folder)[LEARNER]:
            raise Damaged(f"{LEARNER} is not as it was written: its SHA-256 differs")
        return content


class CheckpointStore:
    """The checkpoint folders of one run. Methods raise OSError where the disk is full or cannot be
    reached."""

    def __init__(self, run: Path, keep: int = KEPT):
        """`keep`: the newest that are kept, beside the one with the best evaluation."""
        self.folder, self.keep = run / "checkpoints", keep

    def read(self, folder: Path, step: int) -> Any:
        """What goes on from a folder whose files are whole. Raises ValueError, OSError."""
        raise NotImplementedError

    def steps(self) -> list[int]:
        """After which there is one, ascending."""
        names = (path.name for path in self.folder.glob("step_*") if path.is_dir())
        return sorted(int(found[1]) for name in names if (found := OF_STEP.fullmatch(name)))

    def of_step(self, step: int) -> Path:
        return self.folder / f"step_{step:06d}"

    def seal(self, written: Path, step: int, is_best: bool) -> Path:
        """Makes a folder of files the checkpoint of a step: summed, flushed to the disk, renamed,
        and named by `latest`; deletes those that are not kept. -> its folder."""
        files = sorted(path for path in written.rglob("*") if path.is_file())
        sums = [f"{sum_of(path)}  {path.relative_to(written)}\n" for path in files]
        (written / SUMS).write_text("".join(sums))
        flush_tree(written)
        target = self.of_step(step)
        replace_folder(written, target)
        if is_best:
            self.mark_best(step)
        write_whole(self.folder / LATEST, f"{target.name}\n".encode())
        self._delete_older()
        return target

    def mark_best(self, step: int) -> None:
        """Has the one of a step kept."""
        write_whole(self.folder / BEST, f"{self.of_step(step).name}\n".encode())

    def _delete_older(self) -> None:
        best = self.folder / BEST
        kept = best.read_text(errors="replace").strip() if best.is_file() else ""
        for step in self.steps()[: -self.keep]:
            if self.of_step(step).name != kept:
                remove(self.of_step(step))

    def newest(self, note: Note = lambda line: None) -> Any:
        """What `read` gives of the newest that is whole, None if none is. `note` gets a line for
        each newer one."""
        return next(self.whole_ones(note), None)

    def whole_ones(self, note: Note) -> Iterator[Any]:
        """What `read` gives of those that are whole, the newest first. `note` gets a line for each
        other."""
        for step in reversed(self.steps()):
            folder = self.of_step(step)
            try:
                check(folder)
                found = self.read(folder, step)
            except UNREADABLE as error:  # a checkpoint of another version included
                note(f"checkpoint {folder.name} is damaged ({error}) and not used")
            else:
                yield found

    def delete_after(self, step: int) -> None:
        """Those of later steps."""
        for later in self.steps():
            if later > step:
                remove(self.of_step(later))


class Checkpoints(CheckpointStore):
    """Of a run of reinforcement learning; `read` gives a `Checkpoint`."""

    def write(
        self, state: RunState, learner: bytes, is_best: bool = False, groups: Sequence[Ahead] = ()
    ) -> Path:
        """-> its folder. `is_best`: it has the best evaluation so far; `groups` were drawn
        ahead."""
        self.folder.mkdir(exist_ok=True)
        for left_over in self.folder.glob(".step_*"):  # of a process that was killed meanwhile
            remove(left_over)
        temporary = self.folder / f".{self.of_step(state.step).name}"
        temporary.mkdir()
        try:
            (temporary / LEARNER).write_bytes(learner)
            (temporary / PROGRESS).write_bytes(run_state.to_json(state))
            if groups:
                (temporary / AHEAD).write_bytes(run_state.to_jsonl(groups))
            return self.seal(temporary, state.step, is_best)
        finally:
            remove(temporary)  # where it failed, or a second Ctrl-C came

    def read(self, folder: Path, step: int) -> Checkpoint:
        if missing := {LEARNER, PROGRESS} - sums_in(folder).keys():
            raise Damaged(f"{SUMS} does not list {min(missing)}")
        state = run_state.from_json((folder / PROGRESS).read_bytes())
        if state.step != step:
            raise Damaged(f"{PROGRESS} is of step {state.step}")
        has_groups = AHEAD in sums_in(folder)
        text = (folder / AHEAD).read_bytes() if has_groups else b""
        return Checkpoint(folder, state, run_state.from_jsonl(text))


def check(folder: Path) -> None:
    """Raises Damaged where a file that SHA256SUMS lists is not what was written; OSError."""
    for name, expected in sums_in(folder).items():
        if sum_of(folder / name) not in expected:
            raise Damaged(f"{name} is not as it was written: its SHA-256 differs")


def sums_in(folder: Path) -> dict[str, set[str]]:
    """The files that SHA256SUMS lists, all inside of the folder -> their sums; a mirror has two of
    one that is being replaced. Raises Damaged."""
    try:
        lines = read_bytes(folder / SUMS).decode("ascii").splitlines()
    except (Unreadable, UnicodeDecodeError) as error:
        raise Damaged(f"{SUMS}: {error}") from None
    found: dict[str, set[str]] = {}
    for expected, _, name in (line.partition("  ") for line in lines):
        found.setdefault(name, set()).add(expected)
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Damaged(f"{SUMS} lists {name}")
    return found


def sum_of(path: Path) -> str:
    """The SHA-256 of a file. Raises Damaged for a pipe or a folder, OSError."""
    if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
        raise Damaged(f"{path.name} is no file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

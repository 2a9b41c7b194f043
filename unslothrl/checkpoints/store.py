"""The checkpoints in a run's folder: each is complete or absent, and checked when it is read.

checkpoints/step_000010/    learner.safetensors, progress.json, ahead.jsonl if anything was
                            generated ahead, and SHA256SUMS of them, which `sha256sum --check` reads
checkpoints/latest          the name of the newest
checkpoints/best            the name of the one with the best evaluation
"""

import contextlib
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from unslothrl.checkpoints import ahead, run_state
from unslothrl.checkpoints.ahead import Ahead
from unslothrl.checkpoints.run_state import RunState
from unslothrl.files import flush_tree, remove, replace_folder, write_whole
from unslothrl.untrusted import Unreadable, read_bytes

LATEST, BEST = "latest", "best"
LEARNER, PROGRESS, SUMS = "learner.safetensors", "progress.json", "SHA256SUMS"
AHEAD = "ahead.jsonl"
OF_STEP = re.compile("step_([0-9]{6}|[1-9][0-9]{6,})")  # names of what belongs to a step
KEPT = 2  # the older one is for where the newest is damaged
MOST_SUMS, MOST_PROGRESS, MOST_AHEAD = 4096, 256 << 20, 1 << 30  # bytes

Note = Callable[[str], None]


class Damaged(ValueError):
    """A checkpoint that is not as it was written; says what differs."""


@dataclass(frozen=True)
class Checkpoint:
    """One that was whole when it was found."""

    folder: Path
    state: RunState
    ahead: tuple[Ahead, ...] = ()  # what was drawn ahead and is complete

    def learner(self) -> bytes:
        """What `Learner.save_state` gave. Raises Damaged, OSError."""
        return checked(self.folder, LEARNER)


class Checkpoints:
    """Of one run. Methods raise OSError where the disk is full or cannot be reached."""

    def __init__(self, run: Path, keep: int = KEPT):
        """`keep`: the newest that are kept, beside the one with the best evaluation."""
        self.folder, self.keep = run / "checkpoints", keep

    def steps(self) -> list[int]:
        """After which there is one, ascending."""
        folders = (path for path in self.folder.glob("step_*") if path.is_dir())
        names = (path.name for path in folders if OF_STEP.fullmatch(path.name))
        return sorted(int(name.removeprefix("step_")) for name in names)

    def write(
        self,
        state: RunState,
        learner: bytes,
        is_best: bool = False,
        groups: Sequence[Ahead] = (),
    ) -> Path:
        """Writes one under a temporary name, flushes it to the disk, renames it, and has `latest`
        name it; deletes those that are not kept. -> its folder. `is_best`: it has the best
        evaluation so far; `groups` were drawn ahead."""
        self.folder.mkdir(exist_ok=True)
        for left_over in self.folder.glob(".step_*"):  # of a process that was killed meanwhile
            remove(left_over)
        target = self._of_step(state.step)
        temporary = target.with_name(f".{target.name}")
        temporary.mkdir()
        try:
            contents = {LEARNER: learner, PROGRESS: run_state.to_json(state)}
            if groups:
                contents[AHEAD] = ahead.to_jsonl(groups)
            for name, content in contents.items():
                (temporary / name).write_bytes(content)
            sums = [f"{sha256(content)}  {name}\n" for name, content in contents.items()]
            (temporary / SUMS).write_text("".join(sums))
            flush_tree(temporary)
        except BaseException:  # a second Ctrl-C included
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        replace_folder(temporary, target)
        if is_best:
            write_whole(self.folder / BEST, f"{target.name}\n".encode())
        write_whole(self.folder / LATEST, f"{target.name}\n".encode())
        self._delete_older()
        return target

    def _delete_older(self) -> None:
        kept = ""
        with contextlib.suppress(Unreadable):
            kept = read_bytes(self.folder / BEST, MOST_SUMS).decode(errors="replace").strip()
        for step in self.steps()[: -self.keep]:
            if self._of_step(step).name != kept:
                remove(self._of_step(step))

    def newest(
        self, note: Note = lambda line: None, look: Callable[[Path], None] = lambda path: None
    ) -> Checkpoint | None:
        """The newest that is whole, None if none is. `note` gets a line for each newer one."""
        return next(self.whole_ones(note, look), None)

    def whole_ones(
        self, note: Note, look: Callable[[Path], None] = lambda path: None
    ) -> Iterator[Checkpoint]:
        """Those that are whole, the newest first. `note` gets a line for each other. `look` is
        given the learner's file before it is read, and raises ValueError for what is none."""
        damaged: list[str] = []
        for step in reversed(self.steps()):
            folder = self._of_step(step)
            try:
                state = run_state.from_json(checked(folder, PROGRESS, MOST_PROGRESS))
                if state.step != step:
                    raise Damaged(f"{PROGRESS} is of step {state.step}")
                with opened(folder / LEARNER) as file:
                    look(folder / LEARNER)
                    check_sum(folder, LEARNER, hashlib.file_digest(file, "sha256").hexdigest())
                text = b""
                if any(line.endswith(f"  {AHEAD}") for line in sums_of(folder)):
                    text = checked(folder, AHEAD, MOST_AHEAD)
                groups = ahead.from_jsonl(text)
            except (ValueError, OSError) as error:  # a checkpoint of another version included
                said = str(error)
                if isinstance(error, OSError):
                    said = f"{Path(str(error.filename)).name}: {error.strerror}"
                damaged.append(f"checkpoint {folder.name} is damaged ({said})")
            else:
                while damaged:
                    note(f"{damaged.pop(0)}: {folder.name} is used instead")
                yield Checkpoint(folder, state, groups)
        for line in damaged:
            note(f"{line}: no other checkpoint is whole")

    def delete_after(self, step: int) -> None:
        """Those of later steps."""
        for later in self.steps():
            if later > step:
                remove(self._of_step(later))

    def _of_step(self, step: int) -> Path:
        return self.folder / f"step_{step:06d}"


def checked(folder: Path, name: str, most: int | None = None) -> bytes:
    """The content of a checkpoint's file. Raises Damaged where it is not what was written, or has
    more than `most` bytes."""
    with opened(folder / name) as file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise Damaged(f"{name} has more than {most:,} bytes")
        content = file.read()
    check_sum(folder, name, sha256(content))
    return content


def opened(path: Path) -> BufferedReader:
    """A regular file. Raises Damaged for any other: opening a pipe would wait for its writer."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Damaged(f"{path.name} is no file")
        return path.open("rb")
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None


def check_sum(folder: Path, name: str, found: str) -> None:
    """Raises Damaged where a file's SHA-256 is not the one that was written."""
    if f"{found}  {name}" not in sums_of(folder):
        raise Damaged(f"{name} is not as it was written: its SHA-256 differs")


def sums_of(folder: Path) -> list[str]:
    """The lines of a checkpoint's SHA256SUMS. Raises Damaged."""
    if not (folder / SUMS).exists():
        raise Damaged(f"{SUMS} is missing")
    try:
        return read_bytes(folder / SUMS, MOST_SUMS).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise Damaged(f"{SUMS} is not text") from None
    except Unreadable as error:
        raise Damaged(f"{SUMS}: {error}") from None


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

"""The checkpoints in a run's folder: each is complete or absent, and checked when it is read.

checkpoints/step_000010/    learner.safetensors, progress.json and ahead.jsonl if anything was
                            generated ahead; of SFT, DPO and reward models what the Trainer writes;
                            and SHA256SUMS of them, which `sha256sum --check` reads
checkpoints/latest          the name of the newest
checkpoints/best            the name of the one with the best evaluation

Where the loop stands is dataclasses as JSON, read back by the types of their fields: no pickle, and
no code per class. A tuple or an array that repeats its values is written as runs of them:
[[7, 300], [8, 2]].
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from unslothrl.files import (
    Unreadable,
    flush_tree,
    put_back,
    read_bytes,
    remove,
    replace_folder,
    write_whole,
)
from unslothrl.records import Group, Task

ATOMS = (bool, int, float, str, types.NoneType)
OF_DTYPE: dict[Any, type] = {np.bool_: bool, np.int32: int, np.float32: float}
MOST_REPEATED = 1 << 26  # values that runs may stand for
UNKNOWN = Task("", "", "", "", ())  # until the data is there


@dataclass
class RunState:
    """Where the loop stands. Seeds follow from the step, so there is no more to it. A field that is
    new has a default, which it takes where an older checkpoint lacks it."""

    step: int = 0  # finished steps
    position: int = 0  # tasks drawn
    skipped_in_a_row: int = 0  # updates that were not finite, up to now
    policy_version: int = 0
    samples_seen: int = 0
    seconds: float = 0.0
    outstanding: list[int] = field(default_factory=list)  # positions drawn and not trained on yet
    batches: list[int] = field(default_factory=list)  # sizes of the batches drawn ahead
    evals: list[dict[str, Any]] | None = None
    """[{"step", "eval/<set>/pass@1", ..., "timing/eval_s"}]"""
    unlogged: dict[str, Any] | None = None
    """Metrics of the last step, while its evaluation is to come"""
    data: dict[str, str] = field(default_factory=dict)  # fingerprints of the data sets
    base: str = ""  # hash of the 4-bit weights
    versions: dict[str, str] = field(default_factory=dict)  # of the packages that matter


@dataclass(frozen=True, slots=True)
class Ahead:
    """A group that was drawn ahead (`--max_staleness`), is complete, and was not trained on yet.
    Its task follows from its position in the data."""

    position: int
    attempt: int  # how often it was too old before
    group: Group


def to_jsonl(groups: Iterable[Ahead]) -> bytes:
    """A line for each group: tokens, log-probabilities to the last bit, versions and rewards."""
    rows = [replace(each, group=replace(each.group, task=UNKNOWN)) for each in groups]
    return b"".join(dumps(row) + b"\n" for row in rows)


def from_jsonl(content: bytes) -> tuple[Ahead, ...]:
    """Raises ValueError, TypeError or RecursionError for anything but what `to_jsonl` writes."""
    return tuple(decoded(Ahead, json.loads(line)) for line in content.splitlines())


def dumps(value: Any, indent: int | None = None) -> bytes:
    """JSON in ASCII; a number of NumPy's becomes a plain one, not-a-number is as Python has it."""
    return json.dumps(value, indent=indent, default=_plain).encode("ascii")


def _plain(value: Any) -> Any:
    if not dataclasses.is_dataclass(value):
        return value.item()
    kind: Any = type(value)
    return {each: _shortened(getattr(value, each)) for each in fields_of(kind)}


def _shortened(value: Any) -> Any:
    value = tuple(value.tolist()) if isinstance(value, np.ndarray) else value
    if not isinstance(value, tuple) or not value or type(value[0]) not in ATOMS:
        return value
    runs = [(each, len(list(same))) for each, same in itertools.groupby(value)]
    return runs if 2 * len(runs) <= len(value) else value


def decoded(kind: Any, value: Any, name: str = "it") -> Any:
    """JSON's `value` as a `kind`: a dataclass, a tuple, list or dict of known types, an optional or
    a plain type. Raises ValueError, which names the field, for another, TypeError where a field is
    missing."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or (value is None and isinstance(kind, types.UnionType)):
        return value
    if isinstance(kind, types.UnionType):
        return decoded(inner[0], value, name)
    make: Any = kind
    if isinstance(value, dict) and dataclasses.is_dataclass(kind):
        kinds = fields_of(make)
        if value.keys() <= kinds.keys():
            return make(**{each: decoded(kinds[each], value[each], each) for each in value})
    elif origin is dict and isinstance(value, dict):
        return {key: decoded(inner[1], each, name) for key, each in value.items()}
    elif origin in (tuple, list) and isinstance(value, list):
        if origin is tuple and inner[-1] is not Ellipsis:
            return tuple(decoded(*each, name) for each in zip(inner, value, strict=True))
        return origin(_items(inner[0], value, name))
    elif origin is np.ndarray and isinstance(value, list):
        (dtype,) = typing.get_args(inner[1])
        return np.array(_items(OF_DTYPE[dtype], value, name), dtype)
    elif type(value) is kind or (kind is float and type(value) is int):
        return make(value)
    raise ValueError(f"{name} is not what it must be")


fields_of: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
"""Field -> its type."""


def _items(kind: Any, values: list[Any], name: str) -> list[Any]:
    if kind not in ATOMS:
        return [decoded(kind, each, name) for each in values]
    if values and all(isinstance(each, list) for each in values):
        runs = [decoded(tuple[kind, int], each, name) for each in values]
        if sum(count for _, count in runs) <= MOST_REPEATED:
            return [each for value, count in runs for each in (value,) * count]
    if set(map(type, values)) <= ({int, float} if kind is float else {kind}):
        return list(map(float, values)) if kind is float else values
    raise ValueError(f"{name} is not what it must be")


LATEST, BEST = "latest", "best"
LEARNER, PROGRESS, SUMS = "learner.safetensors", "progress.json", "SHA256SUMS"
AHEAD = "ahead.jsonl"
OF_STEP = re.compile("step_([0-9]{6}|[1-9][0-9]{6,})")  # names of what belongs to a step
KEPT = 2  # the older one is for where the newest is damaged

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
        if hashlib.sha256(content).hexdigest() != sums_in(self.folder)[LEARNER]:
            raise Damaged(f"{LEARNER} is not as it was written: its SHA-256 differs")
        return content


class Checkpoints:
    """The checkpoint folders of one run. Methods raise OSError."""

    def __init__(self, run: Path, keep: int = KEPT):
        """`keep`: the newest that are kept, beside the one with the best evaluation."""
        self.folder, self.keep = run / "checkpoints", keep

    def write(
        self, state: RunState, learner: bytes, is_best: bool = False, groups: Sequence[Ahead] = ()
    ) -> Path:
        """-> its folder. `is_best`: it has the best evaluation; `groups` were drawn ahead."""
        self.folder.mkdir(exist_ok=True)
        for left_over in self.folder.glob(".step_*"):  # of a process that was killed meanwhile
            remove(left_over)
        temporary = self.folder / f".{self.of_step(state.step).name}"
        temporary.mkdir()
        try:
            (temporary / LEARNER).write_bytes(learner)
            (temporary / PROGRESS).write_bytes(dumps(state, indent=2))
            if groups:
                (temporary / AHEAD).write_bytes(to_jsonl(groups))
            return self.seal(temporary, state.step, is_best)
        finally:
            remove(temporary)  # where it failed, or a second Ctrl-C came

    def read(self, folder: Path, step: int) -> Checkpoint:
        """What goes on from a folder whose files are whole. Raises ValueError, OSError."""
        sums = sums_in(folder)
        if missing := {LEARNER, PROGRESS} - sums.keys():
            raise Damaged(f"{SUMS} does not list {min(missing)}")
        state = decoded(RunState, json.loads((folder / PROGRESS).read_bytes()))
        if state.step != step:
            raise Damaged(f"{PROGRESS} is of step {state.step}")
        text = (folder / AHEAD).read_bytes() if AHEAD in sums else b""
        return Checkpoint(folder, state, from_jsonl(text))

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

    def newest(self, note: Note = lambda line: None) -> Checkpoint | None:
        """What `read` gives of the newest that is whole. `note` gets a line for each newer one."""
        return next(self.whole_ones(note), None)

    def whole_ones(self, note: Note) -> Iterator[Checkpoint]:
        """What `read` gives of the whole ones, newest first. `note` gets a line for each other."""
        put_back(self.folder)
        for step in reversed(self.steps()):
            folder = self.of_step(step)
            try:
                check(folder)
                found = self.read(folder, step)
            except (ValueError, TypeError, RecursionError, OSError) as error:
                # another version's too
                note(f"checkpoint {folder.name} is damaged ({error}) and not used")
            else:
                yield found

    def delete_after(self, step: int) -> None:
        """Those of later steps."""
        for later in self.steps():
            if later > step:
                remove(self.of_step(later))
        best = self.folder / BEST
        if best.is_file() and not (self.folder / best.read_text(errors="replace").strip()).exists():
            best.unlink()


def check(folder: Path) -> None:
    """Raises Damaged where a file that SHA256SUMS lists is not what was written; OSError."""
    for name, expected in sums_in(folder).items():
        if sum_of(folder / name) != expected:
            raise Damaged(f"{name} is not as it was written: its SHA-256 differs")


def sums_in(folder: Path) -> dict[str, str]:
    """The files that SHA256SUMS lists, all inside of the folder -> their sums. Raises Damaged."""
    try:
        lines = read_bytes(folder / SUMS).decode("ascii").splitlines()
    except (Unreadable, UnicodeDecodeError) as error:
        raise Damaged(f"{SUMS}: {error}") from None
    found = {name: expected for expected, _, name in (line.partition("  ") for line in lines)}
    for name in found:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Damaged(f"{SUMS} lists {name}")
    return found


def sum_of(path: Path) -> str:
    """The SHA-256 of a file. Raises Damaged for a pipe or a folder, OSError."""
    if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
        raise Damaged(f"{path.name} is no file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""The run folder: all output of a run, in a layout that other programs may rely on. README.md lists
it; besides it has

    start/                       a copy of --adapter, which a resumed run begins with
    .mirror/                     what has been copied to --mirror
    .lock                        held by the process that trains into it, and says which

Files are complete or absent, even if the process is killed: they are written under a temporary name
and renamed. metrics.jsonl is appended to instead; a last line without its line feed is ignored.
"""

import contextlib
import json
import os
import platform
import re
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from unslothrl.checkpoints.store import OF_STEP, Checkpoints
from unslothrl.errors import UserError
from unslothrl.files import exists, read_object, read_text, remove, replace_folder, write_whole
from unslothrl.records import Batch
from unslothrl.text import one_line, redacted
from unslothrl.text import plain as plain_text
from unslothrl.tracking.metrics import is_number
from unslothrl.tracking.rows import encoded, json_line, plain, read_jsonl
from unslothrl.weights.adapter import Adapter, Beside, write_adapter
from unslothrl.weights.starting_adapter import START

CONFIG, METRICS, SUMMARY, REPORT = "config.toml", "metrics.jsonl", "summary.json", "report.html"
RUN_NAME = re.compile(r"[\w][\w.+=@-]{0,99}")
ERROR, ORIGIN, CHECKS, NOTES = "error.txt", "run.json", "checks.jsonl", "notes.jsonl"
ROLLOUTS, ADAPTERS, CHECKPOINTS = "rollouts", "adapters", "checkpoints"
EVALS, TOKENS, LOCK = "evals", "tokens", ".lock"
DATA_FILE = "data.json"  # the fingerprints of what is trained and evaluated on
BEGINNING = (CONFIG, ORIGIN, DATA_FILE, START, NOTES)  # what a run has before it begins
OF_A_RUN = (CONFIG, METRICS, SUMMARY, ROLLOUTS, ADAPTERS, CHECKPOINTS)
HOLDER = "process {} on host {}"  # what the lock's file says
PROBE_S = 0.5  # longer than `is_free` holds it
SCALES = {"logprobs": 100, "gaps": 10_000, "advantages": 1000}  # of a nat, a nat, and 1


def lock_of(folder: Path) -> FileLock:
    """One process at a time trains into a run's folder: it holds this until it ends, however it
    ends. The file says who holds it."""
    return FileLock(folder / LOCK, blocking=False, thread_local=False)


def locked(folder: Path) -> FileLock:
    """UserError where another run trains into the folder; OSError where it cannot be written."""
    lock = lock_of(folder)
    try:
        lock.acquire(timeout=PROBE_S, blocking=True)
    except Timeout:
        raise UserError(
            f"{folder} is in use by {(folder / LOCK).read_text()}: wait until that run has ended, "
            "or end it"
        ) from None
    (folder / LOCK).write_text(HOLDER.format(os.getpid(), platform.node()))
    return lock


def is_free(folder: Path) -> bool:
    """Whether a run could train into a folder that has a lock."""
    try:
        with lock_of(folder):
            return True
    except (Timeout, OSError):
        return False


def is_held(folder: Path) -> bool:
    """Whether a process trains into a folder."""
    lock = folder / LOCK
    return lock.is_file() and not lock.is_symlink() and not is_free(folder)


def stop_holder(folder: Path) -> None:
    """Asks the process that trains into a folder to end after its step, as SIGTERM does. UserError
    where it is none of this user's on this host that has the lock's file open: the file alone may
    say anything."""
    said = read_text(folder / LOCK)
    named = re.match(HOLDER.format(r"(\d+)", re.escape(platform.node())) + r"\Z", said)
    if named is None or not has_open(int(named[1]), folder / LOCK):
        raise UserError(f"{folder} is in use by {plain_text(said)}: end it there")
    os.kill(int(named[1]), signal.SIGTERM)


def has_open(process: int, file: Path) -> bool:
    try:
        return str(file.resolve()) in [each.path for each in psutil.Process(process).open_files()]
    except psutil.Error:  # it has ended, or is another user's
        return False


def is_run(path: Path) -> bool:
    return (path / METRICS).is_file() or (path / CONFIG).is_file()


def runs_in(folder: Path) -> list[Path]:
    """The runs in a folder, the newest last, by when their options were written."""
    found = [path for path in folder.iterdir() if is_run(path)] if folder.is_dir() else []
    files = {path: next(filter(Path.is_file, (path / CONFIG, path / METRICS))) for path in found}
    return sorted(found, key=lambda path: (files[path].stat().st_mtime, path.name))


def is_control(run: Path) -> bool:
    """Whether its rewards were shuffled, by its config.toml."""
    config = run / CONFIG
    text = config.read_text("utf-8", "replace") if config.is_file() else ""
    return "\nshuffle_rewards = true\n" in text


def newest(folder: Path, has_adapter: bool) -> Path:
    """The newest run of a folder, if need be of those that have saved an adapter, and that of a
    control only where there is no other. UserError."""
    runs = runs_in(folder)[::-1]
    if has_adapter:
        runs = [path for path in runs if any((path / ADAPTERS).glob("v*"))]
        runs.sort(key=is_control)
    if runs:
        return runs[0]
    kind = "run that has saved an adapter" if has_adapter else "run"
    raise UserError(f"no {kind} in {folder.resolve()}: name one, e.g. {folder}/NAME")


class RunFolder:
    """The folder of one run. Its methods raise OSError when the disk is full or unavailable."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.beside_adapters = Beside()
        self.last_adapter: Path | None = None  # that this process has written
        self.checkpoints: Any = Checkpoints(self.path)  # or a stage's
        self.lock = lock_of(self.path)
        self.saved: Callable[[], None] = lambda: None  # called when there is more to copy away

    @classmethod
    def create(
        cls, output_dir: Path | str, run_name: str, config_toml: str,
        begin: Callable[[Path], None] = lambda path: None,
    ) -> "RunFolder":  # fmt: skip
        """Locked; `begin` writes what else a run has from its beginning. UserError if the folder
        holds a run already, or cannot be written. What was written is removed whenever an exception
        leaves this."""
        folder, is_new = cls(Path(output_dir) / run_name), False
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.lock = locked(folder.path)
            if any((folder.path / name).exists() for name in OF_A_RUN):
                folder.close()
                raise UserError(
                    f"run_name {run_name}: {folder.path} already holds a run: set another "
                    f"--run_name, or continue it with --resume {folder.path}"
                )
            is_new = True
            folder._remove_beginning()  # of one that was killed before its run had begun
            begin(folder.path)
            write_whole(folder.path / CONFIG, config_toml.encode())
        except BaseException as error:  # a stop included
            if is_new:
                folder.discard()
            if not isinstance(error, OSError):
                raise
            raise UserError(
                f"output_dir {output_dir} cannot be written ({error.strerror}): "
                "set --output_dir to a folder of your own"
            ) from None
        return folder

    @classmethod
    def reopen(cls, path: Path | str) -> "RunFolder":
        """An earlier run's, locked. UserError if it is trained into."""
        folder = cls(path)
        folder.lock = locked(folder.path)
        return folder

    def add_check(self, row: Mapping[str, Any]) -> None:
        """What a process found of itself when it started, after which step; or an export."""
        with (self.path / CHECKS).open("ab") as file:
            file.write(json_line(row))

    def add_note(self, step: int, line: str) -> None:
        """What the terminal has said, for whoever was not there. A full disk is reported there."""
        now = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        row = {"step": step, "date": now, "note": redacted(line, guess=True)}
        with contextlib.suppress(OSError), (self.path / NOTES).open("ab") as file:
            file.write(json_line(row))

    def discard(self) -> None:
        """Undoes `create`, for a run that is refused before it begins."""
        self._remove_beginning()
        (self.path / LOCK).unlink(missing_ok=True)
        self.close()
        if not any(self.path.iterdir()):  # what others have put there stays
            self.path.rmdir()

    def _remove_beginning(self) -> None:
        for name in BEGINNING:
            remove(self.path / name)

    def close(self) -> None:
        """Other processes may train into it."""
        self.lock.release()

    def truncate_after(self, step: int, logged: int, version: int) -> None:
        """Deletes the record of later steps, so that a resumed run does not record them twice; of
        metrics and evaluations what is later than `logged`. Adapters newer than `version` get the
        name of a run that was left, as commands take the newest."""
        (self.path / SUMMARY).unlink(missing_ok=True)  # it says that the run has ended
        if (self.path / METRICS).exists():
            rows = self.read_metrics(lambda damaged: None)
            kept = [row for row in rows if row["step"] <= logged]
            write_whole(self.path / METRICS, b"".join(map(json_line, kept)))
        for folder, last in ((ROLLOUTS, step), (TOKENS, step), (EVALS, logged)):
            for later in self.steps_of(folder):
                if later > last:
                    self.step_file(folder, later).unlink()
        for adapter in (self.path / ADAPTERS).glob("v*"):
            if adapter.name[1:].isdecimal() and int(adapter.name[1:]) > version:
                replace_folder(adapter, adapter.with_name(f"left-{adapter.name}"))
        self.checkpoints.delete_after(step)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Appends a line to metrics.jsonl, on the disk before the checkpoint that goes on after it.
        `metrics` has "step" and numbers by name."""
        with (self.path / METRICS).open("ab") as file:
            file.write(json_line(metrics))
            file.flush()
            os.fsync(file.fileno())

    def add_to_step(self, metrics: Mapping[str, Any]) -> None:
        """Adds to the line of a step that is there, or appends one."""
        rows = self.read_metrics(lambda damaged: None)
        found = [row for row in rows if row["step"] == metrics["step"]]
        if not found:
            self.log(metrics)
            return
        found[-1].update(metrics)
        write_whole(self.path / METRICS, b"".join(map(json_line, rows)))

    def incomplete_record(self, step: int, logged: int) -> str | None:
        """The file whose last line was cut off, of the metrics up to `logged` and the rollouts of
        `step`; None where both are whole, or somebody has deleted them."""
        metrics, rollouts = self.path / METRICS, self.step_file(ROLLOUTS, step)
        needs_line = logged > 0 and metrics.is_file()  # step 0 has one after an evaluation alone
        rows = self.read_metrics(lambda damaged: None) if needs_line else []
        if needs_line and not any(row["step"] == logged for row in rows):
            return metrics.name
        if rollouts.is_file() and not rollouts.read_bytes().endswith(b"\n"):
            return str(rollouts.relative_to(self.path))
        return None

    def read_metrics(self, left_out: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl, as `read_jsonl` does; what was not finite reads as None."""
        return read_jsonl(self.path / METRICS, left_out, needs_step=True)

    def write_rows(self, folder: str, step: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Writes the rollouts of a step or what the evaluation after it drew: see `rows`."""
        path = self.step_file(folder, step)
        path.parent.mkdir(exist_ok=True)
        write_whole(path, b"".join(map(json_line, rows)))
        return path

    def write_error(self, error: BaseException) -> Path:
        """Writes the traceback to error.txt, without secrets."""
        path = self.path / ERROR
        text = redacted("".join(traceback.format_exception(error)), guess=True)
        write_whole(path, encoded(text))
        return path

    def write_bad_batch(self, step: int, batch: Batch) -> Path:
        """Writes the samples of an update that was not finite, for inspection."""
        path = self.path / f"bad_batch_{step:06d}.jsonl"
        write_whole(path, b"".join(json_line(asdict(each)) for each in batch.samples))
        return path

    def save_adapter(self, adapter: Adapter) -> Path:
        """Writes adapters/v<version>/ and returns it."""
        parent, earlier = self.path / ADAPTERS, self.last_adapter
        self.last_adapter = write_adapter(adapter, parent, self.beside_adapters, earlier)
        return self.last_adapter

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes summary.json: "status" (finished, interrupted or failed), "steps", ..."""
        text = json.dumps(plain(summary), indent=2, ensure_ascii=False, allow_nan=False)
        write_whole(self.path / SUMMARY, encoded(text) + b"\n")

    def read_summary(self) -> dict[str, Any]:
        """The content of summary.json, {} while the run goes on. ValueError where it is damaged."""
        path = self.path / SUMMARY
        return read_object(path) if path.exists() else {}

    def steps_of(self, folder: str) -> list[int]:
        """The steps that have a file in a folder, ascending; a copy of one is none."""
        return sorted(
            int(path.stem.removeprefix("step_"))
            for path in (self.path / folder).glob("step_*.jsonl")
            if OF_STEP.fullmatch(path.stem)
        )

    def step_file(self, folder: str, step: int) -> Path:
        """Where the rollouts of a step, or what the evaluation after it drew, are or are to be."""
        return self.path / folder / f"step_{step:06d}.jsonl"


def free_name(output_dir: str, wanted: str) -> str:
    """A name under which there is no folder yet, or what a process has left that was killed before
    its run had begun: the same command begins it again."""
    name, number = wanted, 1
    while exists(str(path := Path(output_dir) / name)):
        has_begun = not (path / LOCK).is_file() or any((path / each).exists() for each in OF_A_RUN)
        if not has_begun and is_free(path):
            break
        number += 1
        name = f"{wanted}-{number}"
    return name


def write_tokens(folder: RunFolder, step: int, tokens: Mapping[int, Mapping[str, Any]]) -> None:
    """Keeps the tokens of a step's rollouts, by the number of their row, for later reports. Of a
    completion's first tokens "pieces" has the texts, "logprobs" the sampler's (None: not sampled),
    "gaps" learner - sampler (None: not compared) and "advantages" what is not the same for all; so
    many are "left_out" after them. The numbers become whole ones, which take the least room."""
    rows = []
    for row, known in tokens.items():
        scaled = {
            name: known[name] and [round(v * by) if is_number(v) else None for v in known[name]]
            for name, by in SCALES.items()
        }
        rows.append({"row": row, **known, **scaled})
    folder.write_rows(TOKENS, step, rows)


def delete_up_to(folder: RunFolder, step: int) -> None:
    for kind in (ROLLOUTS, TOKENS):
        for earlier in folder.steps_of(kind):
            if earlier <= step:
                folder.step_file(kind, earlier).unlink(missing_ok=True)


@contextlib.contextmanager
def noting_errors(note: Callable[[str], None]) -> Iterator[None]:
    """Makes a fault of this package, which ends no run, a line for its user. OSError passes."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError):
            raise
        said = f"{type(error).__name__}: {one_line(error, 100)}"
        note(f"the report cannot be written ({said}); the run continues")

"""One pass over a run's folder: what is new or changed is copied to its mirror.

The order keeps the mirror whole at every instant: first the adapter that the run began with, since
it cannot go on without, then config.toml, which makes it a run, and what checkpoints refer to
(metrics, rollouts, adapters), then the files of a checkpoint with SHA256SUMS, without which it does
not count, as the last, then `latest`, and in the end checkpoints that are gone here are removed
there.
The mirror keeps two checkpoints even where --keep_checkpoints is 1.
"""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unslothrl.checkpoints.store import BEST, LATEST, SUMS
from unslothrl.files import write_whole
from unslothrl.mirror.target import PART, Entry, Target, is_name
from unslothrl.tracking.run_folder import CHECKPOINTS, CONFIG, ORIGIN, SUMMARY
from unslothrl.untrusted import Unreadable, read_object
from unslothrl.weights.starting_adapter import START

OWN = ".mirror"  # in the run's folder: what has been sent, and what is being sent
STATE = "sent.json"
FIRST = (CONFIG, ORIGIN)
STEP = re.compile(r"step_\d{6}")
MOST_SUMS = 4096
MOST_STATE = 64 << 20

Stat = list[int]  # size, mtime in ns
Sizes = dict[str, int | None]  # of a checkpoint's files in the mirror


class Sender:
    """Copies one run's folder to one target."""

    def __init__(self, folder: Path, target: Target):
        self.folder, self.target = folder, target
        self.sent = read_state(folder, target.url)
        self.written: dict[str, str] = {}  # `latest` and `best`
        self.waiting: dict[str, int] = {}  # name -> bytes, of what this pass has still to send
        self.is_first = True
        self.has_summary = True  # the mirror may have
        self.arrived_at = time.monotonic()  # the newest file

    def send(self) -> None:
        """One pass. Raises whatever the target raises; what has been sent by then stays sent."""
        self.waiting, self.arrived_at = {}, time.monotonic()
        try:
            with self.held() as held:
                self.plan(held)
                if self.is_first:
                    self.compare()
                if self.has_summary and not (self.folder / SUMMARY).exists():  # the run goes on
                    self.target.remove(SUMMARY)
                    self.sent.pop(SUMMARY, None)
                    self.has_summary = False
                there = self.there()
                for name in abandoned(there, held):
                    self.remove_checkpoint(name, there.pop(name))
                for name in list(self.waiting):
                    if name not in held and name != SUMMARY:
                        self.send_file(name)
                self.send_checkpoints(held, there)
                if SUMMARY in self.waiting:  # all that it tells of has arrived
                    self.has_summary = True
                    self.send_file(SUMMARY)
        finally:
            write_state(self.folder, self.target.url, self.sent)

    def forget(self) -> None:
        """After an error nobody knows what is there: the next pass looks."""
        self.is_first, self.has_summary = True, True
        self.written = {}
        self.target.made.clear()

    def plan(self, held: dict[str, Path]) -> None:
        for name, path in sorted(plain_files(self.folder), key=lambda each: order(each[0])):
            with contextlib.suppress(FileNotFoundError):
                stat = stat_of(path)
                if self.is_first or self.sent.get(name) != stat:
                    self.waiting[name] = stat[0]
        for name, folder in held.items():
            with contextlib.suppress(FileNotFoundError):
                self.waiting[name] = sum(stat_of(path)[0] for path in folder.iterdir())

    def compare(self) -> None:
        """With what is there: a file that is gone or has another size is sent again, and what a
        killed copy has left is removed."""
        there = {}
        for entry in list(self.target.walk()):
            there[entry.name] = entry.size
            if entry.base.startswith(".") and entry.base.endswith(PART):
                self.target.remove(entry.name)
        self.sent = {name: stat for name, stat in self.sent.items() if there.get(name) == stat[0]}
        for name in list(self.waiting):
            with contextlib.suppress(FileNotFoundError):
                path = self.folder / name
                if path.is_file() and self.sent.get(name) == stat_of(path):
                    del self.waiting[name]
        self.is_first = False

    def send_file(self, name: str) -> None:
        path = self.folder / name
        try:
            stat = stat_of(path)  # before: what is added meanwhile is sent by the next pass
            self.target.put(path, name)
            self.sent[name], self.arrived_at = stat, time.monotonic()
        except FileNotFoundError:  # deleted meanwhile, or the target is gone
            if path.exists():
                raise
        self.waiting.pop(name, None)

    @contextlib.contextmanager
    def held(self) -> Iterator[dict[str, Path]]:
        """Name -> folder, for each checkpoint of the run, newest first; links to their files, so
        that the run may delete them meanwhile."""
        own = self.folder / OWN
        own.mkdir(exist_ok=True)
        release(own)
        found = {}
        names = (path.name for path in (self.folder / CHECKPOINTS).glob("step_*"))
        for name in sorted(filter(STEP.fullmatch, names), reverse=True):
            if folder := hold(self.folder / CHECKPOINTS / name, own / name):
                found[name] = folder
        try:
            yield found
        finally:
            release(own)

    def send_checkpoints(self, held: dict[str, Path], there: dict[str, Sizes]) -> None:
        arrived: list[str] = []
        for name, folder in held.items():
            try:
                self.send_checkpoint(name, folder, there.get(name, {}))
            except FileNotFoundError:
                if folder.exists():
                    raise
                self.waiting.pop(name, None)  # deleted meanwhile, on a file system without links
                continue
            self.waiting.pop(name, None)
            arrived.append(name)
            if name == arrived[0]:
                self.point(LATEST, name)
        best = self.folder / CHECKPOINTS / BEST
        with contextlib.suppress(FileNotFoundError):
            name = best.read_text().strip()
            if name in arrived:
                self.point(BEST, name)
        for name in gone(there, held) if arrived else ():
            self.remove_checkpoint(name, there[name])

    def there(self) -> dict[str, Sizes]:
        """Checkpoint -> file -> bytes, as the mirror has them."""
        found: dict[str, Sizes] = {}
        for folder in self.target.entries(CHECKPOINTS):
            if STEP.fullmatch(folder.base) and folder.kind == "directory":
                entries: list[Entry] = self.target.entries(folder.name)
                found[folder.base] = {entry.base: entry.size for entry in entries}
        return found

    def send_checkpoint(self, name: str, folder: Path, there: Sizes) -> None:
        """Files whose sums the mirror has already are not sent again: a checkpoint is written anew
        after its evaluation, and then one small file differs. Until that has arrived the sums in
        the mirror are of the old one and the new one, and the checkpoint is whole with either."""
        at = f"{CHECKPOINTS}/{name}"
        sums = (folder / SUMS).read_bytes()
        before = (self.target.read(f"{at}/{SUMS}", MOST_SUMS) or b"") if SUMS in there else b""
        known = lines_of(before)
        changed = [
            file
            for file, lines in lines_of(sums).items()
            if known.get(file) != lines or there.get(file) != stat_of(folder / file)[0]
        ]
        if not changed and before == sums:
            return
        if before and len(changed) == 1:
            self.target.write(f"{at}/{SUMS}", before + sums)
        elif before:
            self.target.remove(f"{at}/{SUMS}")
        for file in changed:
            self.target.put(folder / file, f"{at}/{file}")
            self.arrived_at = time.monotonic()
        self.target.write(f"{at}/{SUMS}", sums)

    def point(self, pointer: str, name: str) -> None:
        """`latest` or `best` names a checkpoint."""
        if self.written.get(pointer) != name:
            self.target.write(f"{CHECKPOINTS}/{pointer}", f"{name}\n".encode())
            self.written[pointer] = name

    def remove_checkpoint(self, name: str, files: Sizes) -> None:
        """The sums first: what is cut short is no checkpoint."""
        for file in sorted(files, key=lambda file: file != SUMS):
            self.target.remove(f"{CHECKPOINTS}/{name}/{file}")
        self.target.remove_folder(f"{CHECKPOINTS}/{name}")


def abandoned(there: dict[str, Sizes], held: dict[str, Path]) -> list[str]:
    """Checkpoints of the mirror from after the one that the run went on from, if that is there:
    the metrics and rollouts that they belong to are about to be replaced."""
    newest = max(held, default="")
    if SUMS not in there.get(newest, {}) and not any(
        SUMS in files and name < newest for name, files in there.items()
    ):
        return []
    return [name for name in there if name > newest]


def gone(there: dict[str, Sizes], held: dict[str, Path]) -> list[str]:
    """Checkpoints of the mirror that the run no longer has, but for the one before the newest where
    the run keeps one alone: while a checkpoint is sent again, another one is whole."""
    names = sorted(there.keys() - held.keys())
    if len(held) == 1:
        older = [name for name in names if SUMS in there[name] and name < next(iter(held))]
        names = [name for name in names if name not in older[-1:]]
    return names


def lines_of(sums: bytes) -> dict[str, list[str]]:
    """File -> its lines."""
    found: dict[str, list[str]] = {}
    for line in sums.decode("ascii", "replace").splitlines():
        found.setdefault(line.partition("  ")[2], []).append(line)
    return found


def plain_files(folder: Path, parent: str = "") -> Iterator[tuple[str, Path]]:
    """Name and path of everything but checkpoints, temporary files, the lock, and links."""
    with os.scandir(folder / parent) as entries:
        for entry in entries:
            name = f"{parent}/{entry.name}" if parent else entry.name
            if entry.name.startswith(".") or name == CHECKPOINTS or not is_name(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    yield from plain_files(folder, name)
            elif entry.is_file(follow_symlinks=False):
                yield name, Path(entry.path)


def order(name: str) -> tuple[int, str]:
    if name.startswith(f"{START}/"):
        return -1, name
    return (FIRST.index(name) if name in FIRST else len(FIRST)), name


def stat_of(path: Path) -> Stat:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def hold(folder: Path, at: Path) -> Path | None:
    """A folder with links to the files of a checkpoint, None if it is being replaced or deleted;
    the checkpoint itself where the file system has no links."""
    try:
        before = folder.stat().st_ino
        at.mkdir()
        for path in folder.iterdir():
            os.link(path, at / path.name)
        is_whole = (at / SUMS).exists() and folder.stat().st_ino == before
        return at if is_whole else None
    except FileNotFoundError:
        return None
    except OSError:
        return folder if (folder / SUMS).exists() else None


def release(own: Path) -> None:
    for path in own.glob("step_*"):
        shutil.rmtree(path, ignore_errors=True)


def read_state(folder: Path, url: str) -> dict[str, Stat]:
    """What had been sent to a target when the last process ended, {} if that is not known."""
    try:
        state: dict[str, Any] = read_object(folder / OWN / STATE, MOST_STATE)
        if state["target"] != url:
            return {}
        return {str(name): [int(size), int(time)] for name, (size, time) in state["sent"].items()}
    except (Unreadable, KeyError, AttributeError, TypeError, ValueError):
        return {}


def write_state(folder: Path, url: str, sent: dict[str, Stat]) -> None:
    """What cannot be written is sent again by the next process."""
    with contextlib.suppress(OSError):
        (folder / OWN).mkdir(exist_ok=True)
        write_whole(folder / OWN / STATE, json.dumps({"target": url, "sent": sent}).encode())

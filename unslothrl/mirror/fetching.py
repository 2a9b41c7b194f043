"""A run fetched from a mirror, to go on from it. What lies there may be of anybody: names that a
run's folder cannot have, links, and more bytes than the disk has room for are refused; Python
files, which a config could name, are never fetched."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from unslothrl.checkpoints.store import SUMS
from unslothrl.errors import UserError
from unslothrl.files import exists, flush_tree
from unslothrl.mirror import address
from unslothrl.mirror.mirror import MOST_ORIGIN
from unslothrl.mirror.sending import STEP, stat_of, write_state
from unslothrl.mirror.target import Entry, Refused, Target, asked, opened
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import CHECKPOINTS, CONFIG, LOCK, ORIGIN, RunLock
from unslothrl.untrusted import for_terminal

RUN_NAME = re.compile(r"[\w][\w.+=@-]{0,99}")
RANDOM_NUMBERS = re.compile(r"checkpoints/step_\d{6}/rng_state(_\d+)?\.pth")  # of a stage
PIECE = 4 << 20  # bytes
SPARE = 64 << 20  # bytes of the disk that stay free

Note = Callable[[str], None]


def is_away(text: str | None) -> bool:
    """Whether `--resume` names a run that has to be fetched."""
    return text is not None and address.is_url(text)


def fetch(url: str, output_dir: str, note: Note | None = None) -> Path:
    """Copies a run into `output_dir`, under a temporary name until it is complete. -> its folder.
    UserError where that is taken, or there is no run, or it is not what a run may be."""
    note = note or say
    name = url.rpartition("/")[2]
    if not RUN_NAME.fullmatch(name):
        raise UserError(f"resume {url}: it must end with a run's name: set --resume URL/<run_name>")
    folder = Path(output_dir).expanduser() / name
    if exists(str(folder)):
        raise UserError(
            f"resume {url}: {folder} is there already: continue that with --resume {folder}, or "
            "set another --output_dir"
        )
    target = opened("resume", url)
    files = asked("resume", url, "read", lambda: listed(target))
    temporary = folder.with_name(f".{name}.fetched")
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        lock = RunLock.take(temporary)
    except OSError as error:
        raise UserError(f"output_dir {output_dir} cannot be written ({error.strerror})") from None
    try:
        clear(temporary)
        fetch_files(target, files, temporary, note)
        temporary.rename(folder)
    except BaseException as error:
        clear(temporary)
        lock.discard()
        temporary.rmdir()
        if isinstance(error, OSError):
            raise UserError(f"resume {url} cannot be fetched ({address.said(error)})") from None
        raise
    lock.release()
    return folder


def say(line: str) -> None:
    print(for_terminal(line))


def clear(folder: Path) -> None:
    """Of what an earlier process has left, but for the lock, which is held."""
    for path in folder.iterdir():
        if path.name == LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def listed(target: Target) -> list[Entry]:
    """What is to be fetched. UserError where it is no run; Refused."""
    files = [checked(entry) for entry in target.walk() if not is_left_out(entry.name)]
    if CONFIG not in {entry.name for entry in files}:
        raise UserError(
            f"resume must be a run's folder, got {target.url} (it has no {CONFIG}): set --resume "
            "URL/<run_name>"
        )
    return list(complete(files))


def is_left_out(name: str) -> bool:
    """Temporary names, and code."""
    if any(part.startswith(".") for part in name.split("/")):
        return True
    is_code = name.lower().endswith((".py", ".pyc", ".so", ".pth"))
    return is_code and not RANDOM_NUMBERS.fullmatch(name)


def checked(entry: Entry) -> Entry:
    """Refused for a link, and for what has no size."""
    if entry.kind != "file":
        raise Refused(f"{entry.name} is no file but a {entry.kind}")
    if entry.size is None or entry.size < 0:
        raise Refused(f"{entry.name} has no size")
    return entry


def complete(files: Iterable[Entry]) -> Iterable[Entry]:
    """Without checkpoints that had not arrived whole when the mirror was last written."""
    files = list(files)
    whole = {entry.name.rpartition("/")[0] for entry in files if entry.base == SUMS}
    for entry in files:
        folder, _, name = entry.name.partition("/")
        step = name.partition("/")[0]
        if folder == CHECKPOINTS and STEP.fullmatch(step) and f"{folder}/{step}" not in whole:
            continue
        yield entry


def fetch_files(target: Target, files: list[Entry], folder: Path, note: Note) -> None:
    total = sum(entry.size or 0 for entry in files)
    free = shutil.disk_usage(folder).free - SPARE
    if total > free:
        raise UserError(
            f"resume {target.url} has {total / 1e9:.1f} GB, and {max(0, free) / 1e9:.1f} GB are "
            f"free in {folder.parent}: set --output_dir to another disk"
        )
    note(f"fetching {target.url}: {len(files)} files, {total / 1e6:,.1f} MB")
    sent = {}
    for entry in files:
        path = folder / entry.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with asked_for(target.url, entry.name):
            fetch_file(target, entry, path)
        if not entry.name.startswith(f"{CHECKPOINTS}/"):
            sent[entry.name] = stat_of(path)
    write_state(folder, target.url, sent)
    flush_tree(folder)


@contextlib.contextmanager
def asked_for(url: str, name: str):
    """Any error of a library as a UserError, but those of the own disk."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        raise UserError(f"resume {url}: {name} cannot be read ({address.said(error)})") from None


def fetch_file(target: Target, entry: Entry, path: Path) -> None:
    """As many bytes as were announced: a file may have grown meanwhile."""
    left = entry.size or 0
    with target.fs.open(target.path(entry.name), "rb") as source, path.open("xb") as file:
        while left and (piece := source.read(min(left, PIECE))):
            file.write(piece[:left])
            left -= len(piece[:left])
    if left:
        raise UserError(f"resume {target.url}: {entry.name} ends {left:,} bytes too early")


def newest(mirror: str, run_name: str | None, recipe: Mapping[str, Any]) -> str | None:
    """The URL of the run in a mirror that `--resume auto` goes on with, None if there is none: that
    of `run_name`, else the newest that was begun with the same options."""
    target = opened("mirror", mirror)
    if run_name is not None:
        there = asked("mirror", mirror, "read", lambda: target.read(f"{run_name}/{CONFIG}", 1))
        return None if there is None else f"{mirror}/{run_name}"

    def find() -> dict[str, origin.Origin]:
        folders = [entry.base for entry in target.entries() if entry.kind == "directory"]
        names = filter(RUN_NAME.fullmatch, folders)
        read = {name: target.read(f"{name}/{ORIGIN}", MOST_ORIGIN) for name in names}
        return {name: origin.parsed(content) for name, content in read.items() if content}

    runs = asked("mirror", mirror, "read", find)
    wanted = json.loads(json.dumps(recipe))
    same = [name for name, each in runs.items() if each.recipe == wanted]
    chosen = max(same, key=lambda name: (runs[name].started, name), default=None)
    return None if chosen is None else f"{mirror}/{chosen}"

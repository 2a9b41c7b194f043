"""The archive of a run for a bug report: what explains a failure, and nothing that is secret.

    <run>-bundle/
      doctor.txt                what `unslothrl doctor` says of this machine, without its self-test
      files.txt                 every file of the run with its size
      config.toml run.json summary.json trackers.json error.txt
      metrics.jsonl             the last rows
      logs/...                  the ends of log files, those of Ray's processes too
      rollouts.jsonl            the last completions, where they were asked for

Every text passes `redaction` as a whole before it is cut, and the home folder becomes ~. Links are
not followed, nor is anything read but regular files. Prompts and completions are in no file unless
they were asked for, except what a log or a traceback quotes of them.
"""

import io
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from unslothrl.doctor import Check
from unslothrl.files import write_whole
from unslothrl.redaction import redacted
from unslothrl.tracking.origin import ORIGIN
from unslothrl.tracking.run_folder import CONFIG, ERROR, METRICS, ROLLOUTS, SUMMARY

MOST_BYTES = 64 << 10  # of a file: its end
MARGIN = 16 << 10  # read before that, so that no secret is met by its second half alone
METRIC_ROWS, LOG_LINES = 200, 300
MOST_LISTED, MOST_LOGS = 5_000, 20
TEXTS = (CONFIG, ORIGIN, SUMMARY, "trackers.json", ERROR)
LOG = re.compile(r"\.(?:log|err|out)$")
RAY_SESSIONS = "session_*"
CUT = "[... the beginning is left out]\n"


def texts(run: Path, checks: Iterable[Check], rollouts: int = 0) -> dict[str, str]:
    """Name in the archive -> text, redacted."""
    found = {"doctor.txt": "".join(f"{check.line()}\n" for check in checks)}
    listed = list(files(run))
    found["files.txt"] = "".join(listing(run, listed))
    for name in TEXTS:
        found[name] = end_of(run / name) or ""
    found[METRICS] = last_lines(end_of(run / METRICS) or "", METRIC_ROWS)
    logs = [path for path in listed if LOG.search(path.name)]
    for number, path in enumerate([*logs, *ray_logs(run)][:MOST_LOGS]):
        text = last_lines(end_of(path) or "", LOG_LINES)
        found[f"logs/{number:02d}-{safe(path.name)}"] = text
    if rollouts:
        found["rollouts.jsonl"] = last_rollouts(run, rollouts)
    return {name: clean(text) for name, text in found.items() if text}


def clean(text: str) -> str:
    """Without secrets, without escape sequences, and with ~ for the home folder."""
    text = redacted(text, guess=True)
    text = "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
    return at_home(redacted(text, guess=True))


def at_home(text: str) -> str:
    """The home folder, and the real place of one that is a link, as ~."""
    for home in {os.path.expanduser("~"), os.path.realpath(os.path.expanduser("~"))}:
        if len(home) > 1:
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    return text


def files(folder: Path) -> Iterator[Path]:
    """Everything below that is no folder, in order; a link to a folder is not entered."""
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders.sort()
        links = [name for name in folders if os.path.islink(Path(parent) / name)]
        yield from (Path(parent) / name for name in sorted([*names, *links]))


def listing(run: Path, found: list[Path]) -> Iterator[str]:
    for path in found[:MOST_LISTED]:
        try:
            status = path.lstat()
        except OSError:
            continue
        regular = stat.S_ISREG(status.st_mode)
        size = f"{status.st_size:>14,}" if regular else f"{kind(status.st_mode):>14}"
        yield f"{size}  {redacted(str(path.relative_to(run)), guess=True)!a}\n"
    if len(found) > MOST_LISTED:
        yield f"and {len(found) - MOST_LISTED} more\n"


def kind(mode: int) -> str:
    return "link" if stat.S_ISLNK(mode) else "special"


def end_of(path: Path, most: int = MOST_BYTES) -> str | None:
    """The end of a regular file, without a line that was cut; None for a link, a pipe, a folder, or
    what cannot be read. What was left out of it is redacted with it: see `MARGIN`."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        if path.is_symlink():
            return None
        with open(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            start = max(0, status.st_size - most - MARGIN)
            file.seek(start)
            data = file.read(most + MARGIN)
    except OSError:
        return None
    text = data.decode("utf-8", "replace")
    if start == 0 and len(data) <= most:
        return text
    text = redacted(text, guess=True)[-most:]
    return CUT + text.partition("\n")[2]  # its first line may have lost the beginning of a secret


def last_lines(text: str, most: int) -> str:
    """The whole text is redacted before, since a secret may have several lines."""
    lines = redacted(text, guess=True).splitlines(keepends=True)
    return "".join(lines[-most:])


def last_rollouts(run: Path, most: int) -> str:
    """The last rows, of as many steps as that takes."""
    lines: list[str] = []
    folder = run / ROLLOUTS
    there = [] if folder.is_symlink() else sorted(folder.glob("step_*.jsonl"), reverse=True)
    for path in there:
        if len(lines) >= most:
            break
        lines = [*(end_of(path) or "").splitlines(keepends=True), *lines]
    return "".join(lines[-most:])


def ray_logs(run: Path) -> list[Path]:
    """Those of workers that wrote while the run was on, in our own sessions of Ray's folder."""
    try:
        begun = (run / CONFIG).stat().st_mtime
        ended = max(path.lstat().st_mtime for path in run.iterdir())
        folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray"
        sessions = [path for path in folder.glob(RAY_SESSIONS) if is_ours(path)]
        logs = [path for each in sessions for path in (each / "logs").glob("worker-*.err")]
        return sorted(path for path in logs if begun <= path.lstat().st_mtime <= ended + 60)
    except (OSError, ValueError):
        return []


def is_ours(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == getattr(os, "getuid", lambda: 0)()


def safe(name: str) -> str:
    """A name for a member of an archive."""
    return re.sub(r"[^\w.=+-]", "_", redacted(name, guess=True))[-100:].lstrip(".") or "run"


def write(path: Path, folder: str, members: dict[str, str]) -> None:
    """Writes the archive whole or not at all, without the names of users. OSError."""
    make = zipped if path.suffix == ".zip" else tarred
    write_whole(path, make({f"{folder}/{name}": text for name, text in members.items()}))


def zipped(members: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name), text.encode(), zipfile.ZIP_DEFLATED)
    return out.getvalue()


def tarred(members: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in members.items():
            data = text.encode()
            member = tarfile.TarInfo(name)  # user 0, without a name
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()

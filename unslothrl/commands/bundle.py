"""`unslothrl bundle`: the archive of a run for a bug report: what explains a failure, and nothing
that is secret.

Every text passes `text.redacted` as a whole before it is cut, and the home folder becomes ~. Links
are not followed, nor is anything read but regular files. Prompts and completions are in no file,
except what a log or a traceback quotes of them.
"""

import io
import os
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path

from unslothrl.commands.doctor import Check, examine
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, is_file, write_whole
from unslothrl.text import for_terminal, plain, printable, redacted
from unslothrl.tracking.origin import ORIGIN
from unslothrl.tracking.run_folder import CONFIG, ERROR, METRICS, SUMMARY

MOST_BYTES = 64 << 10  # of a file: its end
MOST_LISTED, MOST_LOGS = 5_000, 20
TEXTS = (CONFIG, ORIGIN, SUMMARY, "trackers.json", ERROR, METRICS)
LOGS = (".log", ".err", ".out")
CUT = "[... the beginning is left out]\n"


def bundle(run: str, output: str | None = None) -> None:
    """Writes the archive, and prints what it holds. UserError."""
    folder = expanded(run)
    if not any(is_file(folder / name) for name in (CONFIG, METRICS)):
        raise UserError(f"bundle {plain(run)} is no run's folder: give one, e.g. runs/<run>")
    name = f"{safe(folder.resolve().name)}-bundle"
    path = Path(f"{name}.tar.gz") if output is None else expanded(output)
    if output is not None and exists(str(path)):
        raise UserError(f"output {plain(str(path))} exists already: remove it, or set another")
    members = texts(folder, examine(self_test=False))
    write(path, name, members)
    print(for_terminal(f"{path}: {', '.join(members)}"))
    print(
        "It holds no prompts or completions; known secrets are hidden. Look through it before you "
        "pass it on."
    )


def texts(run: Path, checks: Iterable[Check]) -> dict[str, str]:
    """Name in the archive -> text, redacted."""
    # not a folder; a link to one is not entered
    listed = [path for path in sorted(run.rglob("*")) if path.is_symlink() or not path.is_dir()]
    logs = [*(path for path in listed if path.suffix in LOGS), *ray_logs(run)][:MOST_LOGS]
    found = {
        "doctor.txt": clean("".join(f"{check.line()}\n" for check in checks)),
        "files.txt": clean("".join(file_line(path, run) for path in listed[:MOST_LISTED])),
        **{name: end_of(run / name) for name in TEXTS},
        **{f"logs/{i:02d}-{safe(path.name)}": end_of(path) for i, path in enumerate(logs)},
    }
    return {name: text for name, text in found.items() if text}


def clean(text: str) -> str:
    """Without secrets, without escape sequences, and with ~ for the home folder."""
    text = printable(redacted(text, guess=True), kept="\n\t")
    text = redacted(text, guess=True)  # also those that a sequence had cut in two
    for home in {os.path.expanduser("~"), os.path.realpath(os.path.expanduser("~"))} - {"/"}:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    return text


def file_line(path: Path, run: Path) -> str:
    """A file with its size; a link and what is no file by its kind."""
    kind = "link" if path.is_symlink() else "special"
    size = f"{path.lstat().st_size:,}" if kind == "special" and path.is_file() else kind
    return f"{size:>14}  {redacted(str(path.relative_to(run)), guess=True)!a}\n"


def end_of(path: Path) -> str:
    """The end of a regular file; "" for a link, a pipe, a folder, or what is not there. Its first
    line, where it is not whole, may have lost the beginning of a secret, and is left out."""
    if path.is_symlink() or not path.is_file():
        return ""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - MOST_BYTES))
        text = clean(file.read(MOST_BYTES).decode("utf-8", "replace"))
    return CUT + text.partition("\n")[2] if size > MOST_BYTES else text


def ray_logs(run: Path) -> list[Path]:
    """Those of our own workers that wrote while the run was on; none of a run without Ray."""
    if 'cluster = "local"' in end_of(run / CONFIG):
        return []
    times = [path.lstat().st_mtime for path in run.iterdir()]
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray"
    logs = [path for path in folder.glob("session_*/logs/worker-*.err") if not path.is_symlink()]
    ours = [path for path in logs if path.stat().st_uid == run.stat().st_uid]
    return sorted(path for path in ours if min(times) <= path.stat().st_mtime <= max(times) + 60)


def safe(name: str) -> str:
    """A name for a member of an archive."""
    return re.sub(r"[^\w.=+-]", "_", redacted(name, guess=True))[-100:].lstrip(".") or "run"


def write(path: Path, folder: str, members: dict[str, str]) -> None:
    """Writes the archive whole or not at all, without the names of users. OSError."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in members.items():
            data = text.encode()
            member = tarfile.TarInfo(f"{folder}/{name}")  # user 0, without a name
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    write_whole(path, out.getvalue())

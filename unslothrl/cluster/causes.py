"""Describes what ended a run in one line that says what to do; Ray's own reports take pages."""

import re
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unslothrl.errors import ProcessLost
from unslothrl.text import redacted

VMSTAT = Path("/proc/vmstat")
SIGNALLED = re.compile(r"\*\*\* (SIG[A-Z]+) |Fatal Python error: ([^\n]+)")
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen")
LOWER_MEMORY = "lower its memory use: see `unslothrl plan`"


def original(error: Exception) -> Exception:
    """The exception that an actor or learner raised, without Ray's wrapping; its remote traceback
    becomes a note of it."""
    text = None
    while (inner := getattr(error, "cause", None)) is not None:
        text = re.sub(r"\x1b\[\d+m", "", str(error))  # without colours
        error = inner
    if text is not None:
        error.add_note(text)
    return error


def process_died(
    error: Any, names: Mapping[str, str], logs: Path | None, oom_kills: int, here: str = ""
) -> ProcessLost:
    """The error to raise for Ray's about a dead process. `names`: Ray's id -> e.g. actor-0;
    `oom_kills`: `oom_killed()` before the processes were started; `here`: this node's address."""
    message = str(error)
    name = names.get(str(getattr(error, "actor_id", "")), "a process of the run")
    pid = re.search(r"\bpid: (\d+)", message)
    ip = re.search(r"\bip: (\S+)", message)
    elsewhere = f" on {ip[1]}" if here and ip and ip[1] != here else ""
    found = logs.glob(f"worker-*-{pid[1]}.err") if logs and pid and not elsewhere else ()
    log = next(iter(sorted(found)), None)
    written = log.read_text(errors="replace")[-20_000:] if log else ""
    cause = probable_cause(message, written, not elsewhere and oom_killed() > oom_kills)
    process = f" (process {pid[1]}{elsewhere})" if pid else ""
    where = f"; its log is {log}" if log else ""
    return ProcessLost(name, f"{name}{process} died: {cause}{where}")


def probable_cause(message: str, log: str, killed_for_memory: bool) -> str:
    """Why a process died: by Ray's message, the end of its log, and the kernel's kills."""
    if "OUT_OF_MEMORY" in message or "memory was low" in message:
        return f"Ray killed it because the machine ran short of memory: {LOWER_MEMORY}"
    if killed_for_memory:
        return f"the kernel killed a process because memory ran out: {LOWER_MEMORY}"
    if match := SIGNALLED.search(log):
        return f"{match[1] or match[2]}"
    if "node" in message and "died" in message and "its node" in message:
        return "its node died or lost the network"
    return f"a signal from outside (SIGKILL); if nobody sent it, memory ran out: {LOWER_MEMORY}"


def is_for_memory(error: ProcessLost) -> bool:
    """Whether a process was ended for memory, as far as is known: it would be again."""
    return any(said in str(error) for said in ("ran short of memory", "because memory ran out"))


def oom_killed() -> int:
    """How many processes the kernel has killed for memory since it started; 0 if unknown."""
    counts = VMSTAT.read_text() if VMSTAT.is_file() else ""
    match = re.search(r"^oom_kill (\d+)$", counts, re.MULTILINE)
    return int(match[1]) if match else 0


def summary_of(error: BaseException) -> str:
    """An unexpected exception in a line: its kind, its message without secrets, and where."""
    lines = [line for line in redacted(str(error), guess=True).splitlines() if line.strip()]
    message = f": {lines[0].strip()[:300]}" if lines else ""
    return f"{type(error).__name__}{message}{place(error)}"


def place(error: BaseException) -> str:
    """ " (file.py, line 3)": the innermost frame outside of libraries, also a remote one."""
    notes = "\n".join(getattr(error, "__notes__", ()))
    frames: Sequence[tuple[str, str | int]] = re.findall(r'File "([^"]+)", line (\d+)', notes)
    if not frames:
        frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
    ours = [frame for frame in frames if not frame[0].startswith(LIBRARIES)] or frames
    return f" ({Path(ours[-1][0]).name}, line {ours[-1][1]})" if ours else ""

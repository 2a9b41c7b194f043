"""The user's files that a process reads: sent to a node that does not have the same.

These are the files of rewards, of an objective, of an environment and of tools, each with the
Python files beside it, which it may import, what a search looks in, and the adapter that a run
starts from. The data set stays in the driver. Ray's own packages (`runtime_env`) hold no more than
a gRPC message, in the memory of the head, for every node alike; an adapter may be larger.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from unslothrl import environments
from unslothrl.algorithms import objectives
from unslothrl.config.options import Config
from unslothrl.embedded import EMBEDDED_TURNS
from unslothrl.environments.corpus import Corpus
from unslothrl.errors import UserError
from unslothrl.files import expanded, write_whole
from unslothrl.rewards import model

MOST_CODE = 8 << 20  # bytes, of a file and those beside it
MOST_DATA = 4 << 30  # of an adapter, and of what a search looks in
SEPARATOR = ".py:"  # of file.py:function

Content = dict[str, bytes]  # path below the file's folder, or the folder -> bytes


def renamed(config: Config, new: Callable[[str], str]) -> Config:
    """The config with `new(path)` in place of every path of the user's that a process reads."""

    def named(text: str) -> str:
        """Of a reward or an environment: file.py:function, or a reward model's folder."""
        if text.startswith(model.PREFIX):
            folder = model.parted(text)[0].removeprefix(model.PREFIX)
            return text.replace(folder, new(folder), 1)
        file, separator, rest = text.partition(SEPARATOR)
        return new(f"{file}.py") + f":{rest}" if separator else text

    learner, adapter = config.learner, config.adapter
    tools = environments.tool_names()
    return replace(
        config,
        learner=new(learner) if objectives.is_file(learner) else learner,
        reward=tuple(map(named, config.reward)),
        environment=named(config.environment),
        tools=tuple(tool if tool in tools else new(tool) for tool in config.tools),
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
        found = Corpus(corpus)
        return {found.shown(file): file for file in found.files()}
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
    """What is sent. Raises UserError where it is too much."""
    files = files_of(path)
    is_data = environments.corpus_of(path) is not None or expanded(path).is_dir()
    most = MOST_DATA if is_data else MOST_CODE
    size = sum(file.stat().st_size for file in files.values())
    if size > most:
        raise UserError(
            f"{path} and the files beside it have {size / 2**20:.0f} MB, and at most "
            f"{most >> 20} are sent to a node: move it into a folder of its own, or copy it to "
            "every node"
        )
    return {name: file.read_bytes() for name, file in files.items()}


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

"""The user's files that a process reads: sent to a node that does not have the same.

These are the files of rewards, of an objective, of an environment and of tools, each with the
Python files beside it, which it may import, what a search looks in, and the adapter that a run
starts from. The data set stays in the driver.
"""

import hashlib
from collections.abc import Mapping
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


def paths_of(config: Config) -> list[str]:
    """Every file and folder of the user's that a process of the run reads."""
    paths = [config.learner] if objectives.is_file(config.learner) else []
    paths += [file_of(text) for text in (*config.reward, config.environment) if SEPARATOR in text]
    paths += [folder for folder in map(model_of, config.reward) if folder]
    paths += [tool for tool in config.tools if tool not in environments.tool_names()]
    paths += [config.adapter] if config.adapter not in (None, EMBEDDED_TURNS) else []
    return list(dict.fromkeys(paths))


def model_of(text: str) -> str | None:
    """The folder of a reward model, None of any other reward."""
    is_model = text.startswith(model.PREFIX)
    return model.parted(text)[0].removeprefix(model.PREFIX) if is_model else None


def file_of(text: str) -> str:
    """ "file.py" of "file.py:function"."""
    return text.partition(SEPARATOR)[0] + SEPARATOR.rstrip(":")


def files_of(name: str) -> dict[str, Path]:
    """The files that belong to a path of the user's, by their names as in `Content`: the Python
    files beside one, a folder's own files, what a search looks in; none where it is not there."""
    corpus = environments.corpus_of(name)
    if corpus is not None:
        return files_of_corpus(Corpus(corpus))
    path = expanded(name)
    if path.is_dir():
        return {each.name: each for each in sorted(path.iterdir()) if each.is_file()}
    if not path.is_file():
        return {}
    beside = (each for each in path.parent.glob("*.py") if each.is_file())
    return {each.name: each for each in sorted({path, *beside})}


def files_of_corpus(corpus: Corpus) -> dict[str, Path]:
    try:
        return {corpus.shown(file): file for file in corpus.files()}
    except UserError:
        return {}


def digest(path: str) -> str:
    """A hash of the files that belong to a path; "" where there are none or they are too large."""
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


def with_paths(config: Config, moved: Mapping[str, str]) -> Config:
    """The config as a node reads it, where files lie elsewhere."""

    def renamed(text: str) -> str:
        if (folder := model_of(text)) is not None:
            return text.replace(folder, moved.get(folder, folder), 1)
        if SEPARATOR not in text:
            return text
        file = file_of(text)
        return moved.get(file, file) + text[len(file) :]

    return replace(
        config,
        learner=moved.get(config.learner, config.learner),
        adapter=config.adapter and moved.get(config.adapter, config.adapter),
        reward=tuple(map(renamed, config.reward)),
        environment=renamed(config.environment),
        tools=tuple(moved.get(file, file) for file in config.tools),
    )

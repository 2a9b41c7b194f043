"""The user's files that a process reads: sent to a node that does not have the same.

These are the files of rewards, of an objective and of an environment, each with the Python files
beside it, which it may import, and the adapter that a run starts from. The data set stays in the
driver.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from unslothrl.algorithms import objectives
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.files import expanded, write_whole

MOST_CODE = 8 << 20  # bytes, of a file and those beside it
MOST_ADAPTER = 4 << 30
SEPARATOR = ".py:"  # of file.py:function

Content = dict[str, bytes]  # file name -> bytes


def paths_of(config: Config) -> list[str]:
    """Every file and folder of the user's that a process of the run reads."""
    paths = [config.learner] if objectives.is_file(config.learner) else []
    paths += [file_of(text) for text in (*config.reward, config.environment) if SEPARATOR in text]
    paths += [file for file in config.tools if file.endswith(".py")]
    paths += [config.adapter] if config.adapter else []
    return list(dict.fromkeys(paths))


def file_of(text: str) -> str:
    """ "file.py" of "file.py:function"."""
    return text.partition(SEPARATOR)[0] + SEPARATOR.rstrip(":")


def files_of(path: Path) -> list[Path]:
    """The files that belong to `path`: the Python files beside one, or a folder's own files; none
    where it is not there."""
    if path.is_dir():
        return sorted(each for each in path.iterdir() if each.is_file())
    if not path.is_file():
        return []
    return sorted({path, *(each for each in path.parent.glob("*.py") if each.is_file())})


def digest(path: str) -> str:
    """A hash of the files that belong to a path; "" where there are none or they are too large."""
    total = hashlib.sha256()
    files = files_of(expanded(path))
    for file in files:
        total.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()[:16] if files else ""


def content(path: str) -> Content:
    """What is sent. Raises UserError where it is too much."""
    source = expanded(path)
    files = files_of(source)
    most = MOST_ADAPTER if source.is_dir() else MOST_CODE
    size = sum(file.stat().st_size for file in files)
    if size > most:
        raise UserError(
            f"{path} and the files beside it have {size / 2**20:.0f} MB, and at most "
            f"{most >> 20} are sent to a node: move it into a folder of its own, or copy it to "
            "every node"
        )
    return {file.name: file.read_bytes() for file in files}


def write(contents: Mapping[str, Content], folder: Path) -> dict[str, str]:
    """Writes what was sent (path -> content) below `folder`. -> path -> where it is now."""
    moved = {}
    for index, (path, files) in enumerate(contents.items()):
        target = folder / f"{index}"
        target.mkdir(parents=True)
        for name, data in files.items():
            write_whole(target / name, data)
        is_file = Path(path).name in files
        moved[path] = str(target / Path(path).name if is_file else target)
    return moved


def with_paths(config: Config, moved: Mapping[str, str]) -> Config:
    """The config as a node reads it, where files lie elsewhere."""

    def renamed(text: str) -> str:
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

"""A reward model as a reward: `--reward rm:runs/NAME`, what `unslothrl rm` has trained.

Its adapter goes on the learner's base, so no second model is in memory. The learners score every
completion before the update; actors give 0 in its place.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file, is_folder, newest_numbered

PREFIX, NAME = "rm:", "rm"
HEAD_FILE = "score_head.safetensors"  # beside the adapter: weight [1, hidden], mean and std [1]
ADAPTERS = "adapters"  # in a run's folder
MOST_HEADER, MOST_NUMBERS = 4096, 1 << 22  # bytes
WEIGHT, MEAN, STD = "weight", "mean", "std"


@dataclass(frozen=True)
class Head:
    """The size of what a reward model's head reads."""

    hidden: int


def folder_of(text: str) -> Path:
    """The adapter's folder of "rm:runs/NAME", the newest of that run, or of "rm:FOLDER" itself.
    UserError where there is none, or it has no head."""
    named = text.removeprefix(PREFIX)
    folder = expanded(named).absolute()
    if is_folder(folder / ADAPTERS):
        newest = newest_numbered(folder / ADAPTERS, "v")
        if newest is None:
            raise UserError(f"reward {text}: this run has saved no adapter yet")
        folder = newest
    if not is_folder(folder):
        raise UserError(f"reward {text}: no such folder: set --reward rm:runs/NAME")
    if not is_file(folder / HEAD_FILE):
        raise UserError(
            f"reward {text}: it has no {HEAD_FILE}, so it is no reward model: train one with "
            "`unslothrl rm`"
        )
    return folder


def absolute(text: str) -> str:
    """ "rm:runs/NAME=0.5" with the whole path of what is named."""
    name, weight = parted(text)
    return f"{PREFIX}{expanded(name.removeprefix(PREFIX)).absolute()}{weight}"


def in_full(text: str) -> str:
    """ "rm:runs/NAME=0.5" with the whole path of the adapter, so that a run which goes on scores by
    the same one."""
    name, weight = parted(text)
    return f"{PREFIX}{folder_of(name)}{weight}"


def kept(asked: Sequence[str], begun: Any, before: Sequence[str]) -> tuple[str, ...]:
    """The rewards that are `asked` for; those that name a run as they did when the run that goes on
    had `begun`, which then was its newest model, are what that run has had `before`, if it is still
    there."""
    texts = begun if isinstance(begun, list) else []
    same = {parted(text)[0] for text in texts if isinstance(text, str)}
    own = {}
    for text in before:
        name, _ = parted(text)
        folder = Path(name.removeprefix(PREFIX))
        if name.startswith(PREFIX) and folder.parent.name == ADAPTERS and is_folder(folder):
            own[f"{PREFIX}{folder.parent.parent}"] = name
    return tuple(
        (own.get(name, name) if name in same else name) + weight
        for name, weight in map(parted, asked)
    )


def parted(text: str) -> tuple[str, str]:
    """-> ("rm:FOLDER", "=WEIGHT" or "")."""
    name, separator, weight = text.rpartition("=")
    if separator:
        try:
            float(weight)
        except ValueError:
            return text, ""
        return name, f"={weight}"
    return text, ""


def head_of(folder: Path) -> Head:
    """What the file of the head says of itself. UserError where it is none."""
    path = folder / HEAD_FILE
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= MOST_HEADER:
                raise ValueError("its header is too long")
            header = json.loads(file.read(length))
            numbers = file.read(MOST_NUMBERS)
        shape = header[WEIGHT]["shape"]
        kinds = {header[name]["dtype"] for name in (WEIGHT, MEAN, STD)}
        ones = [header[name]["shape"] for name in (MEAN, STD)]
        if kinds != {"F32"} or ones != [[1], [1]] or len(shape) != 2 or shape[0] != 1:
            raise ValueError("its tensors are not those of a head")
        if path.stat().st_size != 8 + length + 4 * (shape[1] + 2):
            raise ValueError("it is cut off, or too long")
        check_numbers(numbers, header)
        return Head(int(shape[1]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"reward rm: {path} is damaged ({said}): copy it again, or train it again"
        ) from None


def check_numbers(content: bytes, header: Mapping[str, Any]) -> None:
    """ValueError where one is not finite, or `std` is not over 0: every reward would be NaN."""
    count = len(content) // 4
    numbers = struct.unpack(f"<{count}f", content[: 4 * count])
    if not all(map(math.isfinite, numbers)):
        raise ValueError("it has NaN or infinite numbers")
    begin, end = header[STD]["data_offsets"]
    (std,) = numbers[begin // 4 : end // 4]
    if std <= 0:
        raise ValueError(f"its std is {std}, and must be over 0")

"""A reward model as a reward: `--reward rm:runs/NAME`, what `unslothrl rm` has trained.

Its adapter goes on the learner's base, so no second model is in memory. The learners score every
completion before the update; actors give 0 in its place.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file, is_folder, newest_numbered

PREFIX, NAME = "rm:", "rm"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
HEAD_FILE = "score_head.safetensors"  # beside the adapter: weight [1, hidden], mean and std [1]
ADAPTERS = "adapters"  # in a run's folder
WEIGHT, MEAN, STD = "weight", "mean", "std"


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
    """ "rm:runs/NAME=0.5" with the adapter's whole path: a resumed run scores by the same."""
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
        run = f"{PREFIX}{folder.parent.parent}"
        if run in same and folder.parent.name == ADAPTERS and is_folder(folder):
            own[run] = name
    return tuple(own.get(name, name) + weight for name, weight in map(parted, asked))


def parted(text: str) -> tuple[str, str]:
    """ "NAME=WEIGHT" -> (NAME, "=WEIGHT" or "")."""
    found = re.fullmatch(rf"(.+)(={NUMBER})", text, re.DOTALL)
    return (found[1], found[2]) if found else (text, "")


def head_of(folder: Path) -> int:
    """The size of what a reward model's head reads. UserError where its file is damaged, or where
    every reward would be NaN."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / HEAD_FILE
    try:
        head = load_file(path)
        weight, mean, std = values = [head[WEIGHT], head[MEAN], head[STD]]
        fits = weight.ndim == 2 and [len(weight), mean.shape, std.shape] == [1, (1,), (1,)]
        fits = fits and all(e.dtype == np.float32 and np.isfinite(e).all() for e in values)
        if not fits or std[0] <= 0:
            raise ValueError("its tensors are not those of a head, or not finite")
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        why = " ".join(str(error).split())
        raise UserError(
            f"reward rm: {path} is damaged ({why}): copy it again, or train it again"
        ) from None
    return weight.shape[1]

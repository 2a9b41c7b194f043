"""Parts of an objective that are functions of the user's own: what one raises or returns in place
of numbers ends the run in a line with its file and line.
"""

import inspect
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from unslothrl.algorithms.objective import Objective
from unslothrl.errors import RunError


def checked(objective: Objective, name: str) -> Objective:
    """The objective of the file `name`, each function in it checked where it is called."""
    functions = {
        entry.name: value
        for entry in fields(objective)
        if callable(value := getattr(objective, entry.name)) and entry.name in RETURNS
    }
    wrapped: dict[str, Any] = {
        part: Part(name, part, function) for part, function in functions.items()
    }
    return replace(objective, **wrapped)


class Part:
    """A function of the user's own in the place of one of ours."""

    def __init__(self, file: str, part: str, function: Callable[..., Any]):
        self.file, self.part, self.function = file, part, function
        code = getattr(function, "__code__", None)
        self.path: str = code.co_filename if code else ""
        self.line: int = code.co_firstlineno if code else 0
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self.takes = keywords(function)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Raises RunError. Keywords that the function does not take are left out."""
        if self.takes is not None:
            options = {key: value for key, value in options.items() if key in self.takes}
        try:
            found = self.function(*arguments, **options)
        except Exception as error:
            lines = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename == self.path
            ]
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise RunError(self._said(lines[-1] if lines else self.line, reason)) from None
        wanted = RETURNS[self.part](found, *arguments)
        if wanted is not None:
            raise RunError(self._said(self.line, f"it must return {wanted}, got {shown(found)}"))
        return found

    def _said(self, line: int | None, what: str) -> str:
        return f"learner {self.file}, line {line}, {self.part} {self.name}: {what}"


def keywords(function: Callable[..., Any]) -> set[str] | None:
    """The names that a function takes; None where it takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind == one.VAR_KEYWORD for one in parameters):
        return None
    return {one.name for one in parameters}


def shown(value: Any) -> str:
    """What was returned, in a few words."""
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})"
    if (shape := getattr(value, "shape", None)) is not None:
        return f"{getattr(value, 'dtype', type(value).__name__)} {list(shape)}"
    return f"{type(value).__name__} {value!r}"[:80]


def _is_tensor(value: Any, shape: Sequence[int], kind: str) -> bool:
    import torch

    if not isinstance(value, torch.Tensor) or list(value.shape) != list(shape):
        return False
    return value.dtype == torch.bool if kind == "bool" else value.is_floating_point()


# Each says what should have been returned, or None where it was.


def _of_advantage(found: Any, groups: Sequence[Sequence[float]]) -> str | None:
    sizes = [len(group) for group in groups]
    try:
        fits = [len(group) for group in found] == sizes
        fits = fits and all(math.isfinite(float(value)) for group in found for value in group)
    except (TypeError, ValueError):
        fits = False
    return None if fits else f"a finite number for each reward, in groups of {sizes[:8]}"


def _of_ratio(found: Any, log_ratio: Any, lengths: Any) -> str | None:
    tokens = len(log_ratio)
    return None if _is_tensor(found, [tokens], "float") else f"a ratio for each of {tokens} tokens"


def _of_clip(found: Any, ratio: Any, *others: Any) -> str | None:
    tokens = len(ratio)
    fits = isinstance(found, tuple | list) and len(found) == 2
    if fits and _is_tensor(found[0], [tokens], "float") and _is_tensor(found[1], [tokens], "bool"):
        return None
    return f"(losses, whether a clip acted), float and bool tensors of {tokens} tokens"


def _of_aggregation(found: Any, *arguments: Any) -> str | None:
    return None if _is_tensor(found, [], "float") else "a tensor with one number"


RETURNS: dict[str, Callable[..., str | None]] = {
    "advantage": _of_advantage,
    "ratio": _of_ratio,
    "clip": _of_clip,
    "aggregation": _of_aggregation,
}

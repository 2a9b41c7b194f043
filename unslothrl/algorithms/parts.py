"""Parts of an objective that are functions: what each is called with, and what it must return.

    advantage(rewards)                        [groups][candidates] -> the same of advantages
    ratio(log_ratio, lengths)                 [tokens], [sequences] -> [tokens]
    clip(ratio, logprobs, advantages, clip)   [tokens] each -> ([tokens] losses, [tokens] bool)
    aggregation(terms, lengths, over)         [tokens], [sequences] -> a scalar

More is passed by name, to a function that has a parameter of that name after these: `ddof` and
`epsilon` to an advantage, any field of `losses.Tokens` (`entropies`, `lengths`, ...) to a ratio or
a clip. The files beside this one have the same functions under names.
"""

import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unslothrl.errors import RunError, WillRepeat

TOKENS = ("lengths", "logprobs", "entropies", "advantages", "sampler", "old", "reference")
POSITIONAL = {"advantage": 1, "ratio": 2, "clip": 4, "aggregation": 3}  # arguments
BY_NAME: dict[str, tuple[str, ...]] = {
    "advantage": ("ddof", "epsilon"),
    "ratio": TOKENS,
    "clip": TOKENS,
    "aggregation": (),
}


@dataclass(frozen=True)
class Part:
    """A function in an objective's file, loaded from it when it is first called.

    What it raises, or returns in place of numbers, ends the run in a line that names its file and
    its line.
    """

    learner: str  # the objective's name or file, as `--learner` has it
    part: str  # a key of BY_NAME
    name: str  # the function's
    line: int  # where it is defined; 0: unknown
    load: Callable[[], Callable[..., Any]] = field(compare=False, repr=False)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Raises RunError. What is passed by name and not asked for is left out."""
        function = self.load()
        named = asked_for(function, len(arguments), named)
        try:
            result = function(*arguments, **named)
        except RunError:  # of a part of another file, which this one calls
            raise
        except Exception as error:
            code = getattr(function, "__code__", None)
            lines = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if code and frame.filename == code.co_filename
            ]
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise WillRepeat(self._message(lines[-1] if lines else self.line, reason)) from None
        wanted = RETURNS[self.part](result, *arguments)
        if wanted is not None:
            wrong = f"it must return {wanted}, got {shown(result)}"
            raise WillRepeat(self._message(self.line, wrong))
        return result

    def _message(self, line: int | None, what: str) -> str:
        return f"learner {self.learner}, line {line}, {self.part} {self.name}: {what}"


def function_of(
    known: Mapping[str, Callable[..., Any]],
    chosen: str | Callable[..., Any],
    named: Mapping[str, Any],
) -> Callable[..., Any]:
    """The function that a part names, or is, with those of `named` that it asks for."""
    function = known[chosen] if isinstance(chosen, str) else chosen

    def call(*arguments: Any) -> Any:
        return function(*arguments, **asked_for(function, len(arguments), named))

    return call


def asked_for(
    function: Callable[..., Any], positional: int, named: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of `named` that a function takes beside its first `positional` arguments."""
    taken, others = _parameters(function, positional)
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in others):
        names = named.keys() - {parameter.name for parameter in taken}
    else:
        names = {parameter.name for parameter in others}
    return {name: value for name, value in named.items() if name in names}


def unknown_name(function: Callable[..., Any], part: str) -> str | None:
    """A parameter that a part asks for and that does not exist; None where there is none."""
    for parameter in _parameters(function, POSITIONAL[part])[1]:
        variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        required = parameter.default is parameter.empty and not variable
        if required and parameter.name not in BY_NAME[part]:
            return parameter.name
    return None


def _parameters(
    function: Callable[..., Any], positional: int
) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """-> (those that the first `positional` arguments go to, the others). Both are empty where a
    function written in C does not say."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [], []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [parameter for parameter in parameters if parameter.kind in by_position][:positional]
    return taken, [parameter for parameter in parameters if parameter not in taken]


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


# Each gives what should have been returned, or None where it was.


def _of_advantage(result: Any, groups: Sequence[Sequence[float]]) -> str | None:
    sizes = [len(group) for group in groups]
    try:
        fits = [len(group) for group in result] == sizes
        fits = fits and all(math.isfinite(float(value)) for group in result for value in group)
    except (TypeError, ValueError):
        fits = False
    return None if fits else f"a finite number for each reward, in groups of {sizes[:8]}"


def _of_ratio(result: Any, log_ratio: Any, lengths: Any) -> str | None:
    tokens = len(log_ratio)
    return None if _is_tensor(result, [tokens], "float") else f"a ratio for each of {tokens} tokens"


def _of_clip(result: Any, ratio: Any, *others: Any) -> str | None:
    tokens = len(ratio)
    fits = isinstance(result, tuple | list) and len(result) == 2
    if (
        fits
        and _is_tensor(result[0], [tokens], "float")
        and _is_tensor(result[1], [tokens], "bool")
    ):
        return None
    return f"(losses, whether a clip acted), float and bool tensors of {tokens} tokens"


def _of_aggregation(result: Any, *arguments: Any) -> str | None:
    return None if _is_tensor(result, [], "float") else "a tensor with one number"


RETURNS: dict[str, Callable[..., str | None]] = {
    "advantage": _of_advantage,
    "ratio": _of_ratio,
    "clip": _of_clip,
    "aggregation": _of_aggregation,
}

"""An objective is a choice for each of a few independent parts. No torch here: every process reads
it, and `config` fills from it what the user did not set.

The loss of a batch, summed over the tokens of the chosen candidates by the aggregation:

    correction_t * clip(ratio_t, A_t) + kl_coefficient * k_t - entropy_coefficient * H_t

Four parts may be functions. They are called with, and must return:

    advantage(rewards)                        [groups][candidates] -> the same of advantages
    ratio(log_ratio, lengths)                 [tokens], [sequences] -> [tokens]
    clip(ratio, logprobs, advantages, clip)   [tokens] each -> ([tokens] losses, [tokens] bool)
    aggregation(terms, lengths, over)         [tokens], [sequences] -> a scalar

More is passed by name, to a function that has a parameter of that name after these: `ddof` and
`epsilon` to an advantage, any field of `losses.Tokens` (`entropies`, `lengths`, ...) to a ratio or
a clip. The files beside this one have the same functions under names.
"""

import functools
import inspect
import math
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from unslothrl.errors import RunError, UserError, WillRepeat
from unslothrl.files import read_text
from unslothrl.text import shown as shown_text

FUNCTIONS = ("advantage", "ratio", "clip", "aggregation")  # parts that may be one
PLAIN = (str, bool, int, float, type(None))


@dataclass(frozen=True)
class Objective:
    """Every part is a name that its file knows, or a number; four may be functions."""

    advantage: str | Callable[..., Any] = "standardised"  # advantages.py, or gae
    advantage_std: str = "population"  # or sample, which divides by n - 1
    advantage_epsilon: float = 1e-8  # added to what it is divided by
    ratio: str | Callable[..., Any] = "token"  # losses.py
    clip: str | Callable[..., Any] = "surrogate"  # losses.py
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_dual: float = 0.0  # 0: off
    skip_threshold: float = 0.0  # mean ratio over which a sequence is left out; 0: off
    aggregation: str | Callable[..., Any] = "sequence"  # losses.py
    kl: str = "none"  # or loss, reward
    kl_estimator: str = "k3"  # divergence.py
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.0
    correction: str = "truncated"  # losses.py
    correction_low: float | None = None  # its bounds; None: the usual ones
    correction_high: float | None = None
    mask_truncated: bool = False  # leave truncated completions out of the loss
    overlong: bool = False  # punish completions softly as they near the limit
    filter_low: float = 0.0  # group accuracies that are kept
    filter_high: float = 1.0
    max_resample: int = 0  # times that prompts are drawn again for those filtered out

    @property
    def has_critic(self) -> bool:
        """Whether an advantage needs no siblings."""
        return self.advantage == "gae"

    @property
    def trains_without_advantage(self) -> bool:
        """Whether samples with advantage zero still have a gradient."""
        return self.has_critic or self.kl == "loss" or self.entropy_coefficient != 0


@dataclass(frozen=True)
class Part:
    """A function of an objective's file. What it raises, or returns in place of numbers, ends the
    run in a line that names its file and its line."""

    learner: str  # the objective's name or file, as `--learner` has it
    part: str  # one of `FUNCTIONS`
    function: Callable[..., Any]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Raises RunError. What is passed by name and not asked for is left out."""
        code = getattr(self.function, "__code__", None)
        line = code.co_firstlineno if code else 0
        try:
            result = self.function(*arguments, **asked_for(self.function, arguments, named))
        except Exception as error:
            if isinstance(error, RunError):  # of a part of another file, which this one calls
                raise
            frames = traceback.extract_tb(error.__traceback__)
            own = [each.lineno for each in frames if code and each.filename == code.co_filename]
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise WillRepeat(self._message(own[-1] if own else line, reason)) from None
        wanted = _wanted(self.part, result, arguments)
        if wanted is not None:
            raise WillRepeat(self._message(line, f"it must return {wanted}, got {shown(result)}"))
        return result

    def _message(self, line: int | None, what: str) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"learner {self.learner}, line {line}, {self.part} {name}: {what}"


def function_of(
    known: Mapping[str, Callable[..., Any]],
    chosen: str | Callable[..., Any],
    named: Mapping[str, Any],
) -> Callable[..., Any]:
    """The function that a part names, or is, with those of `named` that it asks for."""
    function = known[chosen] if isinstance(chosen, str) else chosen

    def call(*arguments: Any) -> Any:
        return function(*arguments, **asked_for(function, arguments, named))

    return call


def asked_for(
    function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of `named` that a function takes beside its `arguments`. TypeError where it does not
    take these."""
    signature = inspect.signature(function)
    taken, known = signature.bind_partial(*arguments).arguments, signature.parameters.values()
    takes_all = any(parameter.kind == parameter.VAR_KEYWORD for parameter in known)
    free = (named if takes_all else signature.parameters).keys() - taken.keys()
    return {name: value for name, value in named.items() if name in free}


def shown(value: Any) -> str:
    """What was returned, in a few words."""
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})"
    if (shape := getattr(value, "shape", None)) is not None:
        return f"{getattr(value, 'dtype', type(value).__name__)} {list(shape)}"
    return f"{type(value).__name__} {value!r}"[:80]


def _wanted(part: str, result: Any, arguments: Sequence[Any]) -> str | None:
    """What a part should have returned, None where it did."""
    if part == "advantage":
        sizes = [len(group) for group in arguments[0]]
        try:
            fits = [len(group) for group in result] == sizes
            fits = fits and all(math.isfinite(float(value)) for group in result for value in group)
        except (TypeError, ValueError):
            fits = False
        return None if fits else f"a finite number for each reward, in groups of {sizes[:8]}"
    if part == "aggregation":
        return None if _is_tensor(result, [], "float") else "a tensor with one number"
    shape = [len(arguments[0])]
    if part == "ratio":
        fits = _is_tensor(result, shape, "float")
        return None if fits else f"a ratio for each of {shape[0]} tokens"
    fits = isinstance(result, tuple | list) and len(result) == 2
    if fits and _is_tensor(result[0], shape, "float") and _is_tensor(result[1], shape, "bool"):
        return None
    return f"(losses, whether a clip acted), float and bool tensors of {shape[0]} tokens"


def _is_tensor(value: Any, shape: Sequence[int], kind: str) -> bool:
    import torch

    if not isinstance(value, torch.Tensor) or list(value.shape) != list(shape):
        return False
    return value.dtype == torch.bool if kind == "bool" else value.is_floating_point()


# An objective's file: a Python file that defines OBJECTIVE.


def read(learner: str, path: Path) -> Objective:
    """OBJECTIVE of the file `path`, which messages call `learner`. Raises UserError."""
    text = read_text(path)
    if "torch" in text:  # which reads some of them when it is imported
        from unslothrl.system import variables
        from unslothrl.system.machine import usable_cpus

        variables.apply(usable_cpus(), gpu=True)
    return _executed(learner, path, text)


@functools.lru_cache(maxsize=64)
def _executed(learner: str, path: Path, text: str) -> Objective:
    """Raises UserError."""
    module = types.ModuleType(f"unslothrl_objective_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses of the file look for it there
    if (folder := str(path.absolute().parent)) not in sys.path:
        sys.path.append(folder)  # for what lies beside it
    try:
        exec(compile(text.encode(), path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"learner {learner} fails when it is imported ({reason}): fix it") from None
    objective = getattr(module, "OBJECTIVE", None)
    if not isinstance(objective, Objective):
        raise UserError(
            f"learner {learner} defines no OBJECTIVE: write OBJECTIVE = Objective(...) with "
            "Objective from unslothrl.algorithms.objective"
        )
    names = [entry.name for entry in fields(Objective)]
    return Objective(**{name: _part(learner, name, getattr(objective, name)) for name in names})


def _part(learner: str, part: str, value: Any) -> Any:
    """A value of OBJECTIVE: a function as a `Part`, what no part can be as it is shown."""
    if callable(value) and part in FUNCTIONS and not isinstance(value, Part):
        return Part(learner, part, value)
    return value if type(value) in PLAIN or isinstance(value, Part) else shown_text(value)


def learning_rate_share(
    kind: str, step: int, total: int, warmup: int = 0, floor: float = 0.0
) -> float:
    """The learning rate of a step, as a share of `--lr`. `step` counts from 1 to `total`. -> over
    0, to 1; after warm-up over `floor`, or 1 where that is.

        constant  1
        linear    from 1 at the first step after warm-up down to `floor`, which the step after the
                  last would have
        cosine    the same on half a cosine, arXiv 1608.03983, equation 5 without restarts

    Warm-up goes from 1 / warmup at the first step to 1 at step `warmup`, in equal steps. So every
    step trains. After warm-up all are as in transformers, whose warm-up begins at 0.
    """
    if step <= warmup:
        return step / warmup
    if kind == "constant":
        return 1.0
    done = min(1.0, (step - warmup - 1) / max(1, total - warmup))
    left = 1 - done if kind == "linear" else (1 + math.cos(math.pi * done)) / 2
    return floor + (1 - floor) * left

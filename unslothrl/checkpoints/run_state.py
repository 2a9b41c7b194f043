"""Where the loop of a run stands, as a checkpoint has it: dataclasses as JSON, read back by the
types of their fields. No pickle, and no code per class.

A tuple or an array that repeats its values is written as runs of them: [[7, 300], [8, 2]].
"""

import dataclasses
import functools
import itertools
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from unslothrl.records import Group, Task

ATOMS = (bool, int, float, str, types.NoneType)
OF_DTYPE: dict[Any, type] = {np.bool_: bool, np.int32: int, np.float32: float}
MOST_REPEATED = 1 << 26  # values that runs may stand for
UNKNOWN = Task("", "", "", "", ())  # until the data is there


@dataclass
class RunState:
    """Where the loop stands. Seeds follow from the step, so there is no more to it."""

    step: int = 0  # finished steps
    position: int = 0  # tasks drawn
    skipped_in_a_row: int = 0  # updates that were not finite, up to now
    policy_version: int = 0
    samples_seen: int = 0
    seconds: float = 0.0
    outstanding: list[int] = field(default_factory=list)  # positions drawn and not trained on yet
    batches: list[int] = field(default_factory=list)  # sizes of the batches drawn ahead
    evals: list[dict[str, Any]] | None = None
    """[{"step", "eval/<set>/pass@1", ..., "timing/eval_s"}]"""
    unlogged: dict[str, Any] | None = None
    """Metrics of the last step, while its evaluation is to come"""
    data: dict[str, str] = field(default_factory=dict)  # fingerprints of the data sets
    base: str = ""  # hash of the 4-bit weights
    versions: dict[str, str] = field(default_factory=dict)  # of the packages that matter


def to_json(state: RunState) -> bytes:
    """Not-a-number and infinity among the metrics are as Python writes them."""
    return dumps(state, indent=2)


def from_json(text: bytes) -> RunState:
    """Raises ValueError, TypeError or RecursionError for anything but what `to_json` writes."""
    return decoded(RunState, json.loads(text))


@dataclass(frozen=True, slots=True)
class Ahead:
    """A group that was drawn ahead (`--max_staleness`), is complete, and was not trained on yet.
    Its task follows from its position in the data."""

    position: int
    attempt: int  # how often it was too old before
    group: Group

    def of(self, task: Task) -> Group:
        """The group of that task, which is the one of before."""
        return replace(self.group, task=task)


def to_jsonl(groups: Iterable[Ahead]) -> bytes:
    """A line for each group: tokens, log-probabilities to the last bit, versions and rewards."""
    return b"".join(dumps(replace(each, group=each.of(UNKNOWN))) + b"\n" for each in groups)


def from_jsonl(content: bytes) -> tuple[Ahead, ...]:
    """As `from_json`."""
    return tuple(decoded(Ahead, json.loads(line)) for line in content.splitlines())


def dumps(value: Any, indent: int | None = None) -> bytes:
    """JSON in ASCII; a number of NumPy's becomes a plain one."""
    return json.dumps(value, indent=indent, default=_plain).encode("ascii")


def _plain(value: Any) -> Any:
    if not dataclasses.is_dataclass(value):
        return value.item()
    kind: Any = type(value)
    return {each: _shortened(getattr(value, each)) for each in fields_of(kind)}


def _shortened(value: Any) -> Any:
    value = tuple(value.tolist()) if isinstance(value, np.ndarray) else value
    if not isinstance(value, tuple) or not value or type(value[0]) not in ATOMS:
        return value
    runs = [(each, len(list(same))) for each, same in itertools.groupby(value)]
    return runs if 2 * len(runs) <= len(value) else value


def decoded(kind: Any, value: Any, name: str = "it") -> Any:
    """JSON's `value` as a `kind`: a dataclass, a tuple, list or dict of known types, an optional or
    a plain type. Raises ValueError, which names the field, for another, TypeError where a field is
    missing."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or (value is None and isinstance(kind, types.UnionType)):
        return value
    if isinstance(kind, types.UnionType):
        return decoded(inner[0], value, name)
    make: Any = kind
    if isinstance(value, dict) and dataclasses.is_dataclass(kind):
        kinds = fields_of(make)
        if value.keys() <= kinds.keys():
            return make(**{each: decoded(kinds[each], value[each], each) for each in value})
    elif origin is dict and isinstance(value, dict):
        return {key: decoded(inner[1], each, name) for key, each in value.items()}
    elif origin in (tuple, list) and isinstance(value, list):
        if origin is tuple and inner[-1] is not Ellipsis:
            return tuple(decoded(*each, name) for each in zip(inner, value, strict=True))
        return origin(_items(inner[0], value, name))
    elif origin is np.ndarray and isinstance(value, list):
        (dtype,) = typing.get_args(inner[1])
        return np.array(_items(OF_DTYPE[dtype], value, name), dtype)
    elif type(value) is kind or (kind is float and type(value) is int):
        return make(value)
    raise ValueError(f"{name} is not what it must be")


@functools.cache
def fields_of(kind: Any) -> dict[str, Any]:
    """Field -> its type."""
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def _items(kind: Any, values: list[Any], name: str) -> list[Any]:
    if kind not in ATOMS:
        return [decoded(kind, each, name) for each in values]
    if values and all(isinstance(each, list) for each in values):
        runs = [decoded(tuple[kind, int], each, name) for each in values]
        if sum(count for _, count in runs) <= MOST_REPEATED:
            return [each for value, count in runs for each in (value,) * count]
    if set(map(type, values)) <= ({int, float} if kind is float else {kind}):
        return list(map(float, values)) if kind is float else values
    raise ValueError(f"{name} is not what it must be")

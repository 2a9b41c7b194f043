"""Where the loop of a run stands, as a checkpoint has it: JSON, no pickle."""

import json
import math
import types
import typing
from dataclasses import asdict, dataclass, field, fields
from typing import Any

LARGEST = 2**63


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
    evals: list[dict] | None = None  # [{"step", "eval/<set>/pass@1", ..., "timing/eval_s"}]
    unlogged: dict | None = None  # metrics of the last step, while its evaluation is to come
    data: dict[str, str] = field(default_factory=dict)  # fingerprints of the data sets
    base: str = ""  # hash of the 4-bit weights
    versions: dict[str, str] = field(default_factory=dict)  # of the packages that matter


def to_json(state: RunState) -> bytes:
    """Numbers of NumPy's become JSON's; not-a-number and infinity are as Python writes them."""
    return json.dumps(asdict(state), indent=2, default=lambda v: v.item()).encode("ascii")


def from_json(text: bytes) -> RunState:
    """Raises ValueError for anything but what `to_json` writes."""
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    kinds = typing.get_type_hints(RunState)
    if not isinstance(values, dict) or values.keys() != {each.name for each in fields(RunState)}:
        raise ValueError("it is of another version of this package")
    for name, value in values.items():
        if not is_a(value, kinds[name]):
            raise ValueError(f"{name} is not what it must be")
    for row in (*(values["evals"] or ()), values["unlogged"] or {}):
        if not all(value is None or is_number(value) for value in row.values()):
            raise ValueError("a metric in it is no number")
    if not all(is_a(row.get("step"), int) for row in values["evals"] or ()):
        raise ValueError("one of its evaluations has no step")
    return RunState(**values)


def is_number(value: Any) -> bool:
    """Not-a-number and infinity included; not an integer beyond all floats."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= LARGEST)


def is_a(value: Any, kind: Any) -> bool:
    """Whether a value of JSON's is one of a field's type."""
    if isinstance(kind, types.UnionType):
        return any(is_a(value, each) for each in kind.__args__)
    if kind is int:
        return type(value) is int and 0 <= value <= LARGEST
    if kind is float:
        return type(value) in (int, float) and is_number(value) and math.isfinite(value)
    if typing.get_origin(kind) is dict:
        return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    if typing.get_origin(kind) is list:
        return isinstance(value, list) and all(is_a(each, kind.__args__[0]) for each in value)
    return isinstance(value, kind)

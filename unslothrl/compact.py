"""Long tuples in a few bytes, for records that cross a process: exact, and fast to read back.

Pickle writes and reads a tuple element by element. A completion of 1,000 tokens takes half the
bytes in this form, and less than half the time (bench/payload.py). The bytes are of this kind of
machine: every process of a run has the same.
"""

import itertools
import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

T = TypeVar("T", bound=Hashable)
Numbers = tuple[str, Any]  # (struct's code of an element, bytes), or ("", a tuple)
Runs = tuple[tuple[T, int], ...]  # (value, how often it comes in a row)
Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def ints_packed(values: Sequence[int]) -> Numbers:
    """Whole numbers of up to 32 bits, others as they are."""
    try:
        return "i", struct.pack(f"{len(values)}i", *values)
    except struct.error:  # larger, or no whole numbers
        return "", tuple(values)


def floats_packed(values: Sequence[float]) -> Numbers:
    """In 32 bits where that loses nothing: an engine that computes log-probabilities in float32
    gives such numbers."""
    exact = struct.pack(f"{len(values)}d", *values)
    with np.errstate(over="ignore", invalid="ignore"):
        short = np.frombuffer(exact).astype(np.float32)
        is_exact = short.astype(np.float64).tobytes() == exact
    return ("f", short.tobytes()) if is_exact else ("d", exact)


def unpacked(packed: Numbers) -> tuple[Any, ...]:
    """What `ints_packed` or `floats_packed` was given."""
    code, data = packed
    return struct.unpack(f"{len(data) // struct.calcsize(code)}{code}", data) if code else data


def runs(values: Sequence[T]) -> Runs[T]:
    """(7, 7, 7, 9) -> ((7, 3), (9, 1))."""
    if values and values.count(values[0]) == len(values):
        return ((values[0], len(values)),)
    return tuple((value, len(list(same))) for value, same in itertools.groupby(values))


def repeated(runs: Runs[T]) -> tuple[T, ...]:
    """What `runs` was given."""
    if len(runs) == 1:
        ((value, count),) = runs
        return (value,) * count
    return tuple(itertools.chain.from_iterable(itertools.starmap(itertools.repeat, runs)))


def length(packed: Numbers) -> int:
    """How many numbers there are."""
    code, data = packed
    return len(data) // struct.calcsize(code) if code else len(data)


def runs_or_none(values: Sequence[T] | None) -> Runs[T] | None:
    return None if values is None else runs(values)


def repeated_or_none(runs: Runs[T] | None) -> tuple[T, ...] | None:
    return None if runs is None else repeated(runs)


class Packed:
    """A frozen dataclass with slots whose long tuples may be packed until they are read."""

    __slots__ = ("packed",)
    COLUMNS: ClassVar[dict[str, Codec]]  # field -> how it is packed, and unpacked
    packed: tuple[Any, ...] | None  # as COLUMNS; None: this record was not packed

    def pack(self) -> tuple[Any, ...]:
        """The fields of COLUMNS, as they came if they came packed."""
        return self.packed or tuple(
            pack(getattr(self, name)) for name, (pack, _) in self.COLUMNS.items()
        )

    def column(self, name: str) -> Any:
        """One of COLUMNS, packed."""
        if self.packed is not None:
            return self.packed[list(self.COLUMNS).index(name)]
        return self.COLUMNS[name][0](getattr(self, name))

    if not TYPE_CHECKING:  # which would take every name for defined

        def __getattr__(self, name: str) -> Any:
            """Of a slot that is empty still."""
            if name == "packed":
                return None
            if name not in self.COLUMNS or self.packed is None:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            value = self.COLUMNS[name][1](self.column(name))
            object.__setattr__(self, name, value)
            return value


P = TypeVar("P", bound=Packed)


def record(kind: type[P], packed: tuple[Any, ...], others: Mapping[str, Any]) -> P:
    """One of a frozen kind with its COLUMNS packed, and its other fields."""
    made = kind.__new__(kind)
    object.__setattr__(made, "packed", packed)
    for name, value in others.items():
        object.__setattr__(made, name, value)
    return made

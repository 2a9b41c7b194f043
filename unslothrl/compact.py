"""Long tuples in a few bytes, for records that cross a process: exact, and fast to read back.

Pickle writes and reads a tuple element by element. A completion of 1,000 tokens takes half the
bytes in this form, and less than half the time (bench/payload.py). The bytes are of this kind of
machine: every process of a run has the same.
"""

import itertools
import operator
import struct
from collections.abc import Callable, Hashable, Sequence
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


def constant_packed(values: np.ndarray) -> Any:
    """An array of float32 as (value, how often) where all are the same, else as it is."""
    if values.dtype != np.float32 or not len(values):
        return values
    bits = values.view(np.uint32)
    return (float(values[0]), len(values)) if (bits == bits[0]).all() else values


def constant_unpacked(packed: Any) -> np.ndarray:
    """What `constant_packed` was given."""
    return np.full(packed[1], packed[0], np.float32) if isinstance(packed, tuple) else packed


class Packed:
    """A frozen dataclass with slots whose long tuples may be packed until they are read."""

    __slots__ = ("memo", "packed")
    COLUMNS: ClassVar[dict[str, Codec]]  # field -> how it is packed, and unpacked
    UNPACKED: ClassVar[tuple[str, ...]]  # the other fields
    PLACES: ClassVar[dict[str, int]]  # field -> its place in `packed`
    OTHERS: ClassVar[Callable[[Any], tuple[Any, ...]]]  # -> the values of UNPACKED
    packed: tuple[Any, ...] | None  # as COLUMNS; None: this record was not packed
    memo: Any  # what a method has computed; None: nothing yet

    def __init_subclass__(cls) -> None:
        cls.PLACES = {name: place for place, name in enumerate(cls.COLUMNS)}
        cls.OTHERS = operator.attrgetter(*cls.UNPACKED)

    def __reduce__(self) -> tuple[Any, ...]:
        return record, (type(self), self.pack(), *type(self).OTHERS(self))

    def pack(self) -> tuple[Any, ...]:
        """The fields of COLUMNS, as they came if they came packed."""
        return self.packed or tuple(
            pack(getattr(self, name)) for name, (pack, _) in self.COLUMNS.items()
        )

    def column(self, name: str) -> Any:
        """One of COLUMNS, packed."""
        if self.packed is not None:
            return self.packed[self.PLACES[name]]
        return self.COLUMNS[name][0](getattr(self, name))

    if not TYPE_CHECKING:  # which would take every name for defined

        def __getattr__(self, name: str) -> Any:
            """Of a slot that is empty still."""
            if name in Packed.__slots__:
                return None
            if name not in self.COLUMNS or self.packed is None:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            value = self.COLUMNS[name][1](self.column(name))
            object.__setattr__(self, name, value)
            return value


P = TypeVar("P", bound=Packed)


def record(kind: type[P], packed: tuple[Any, ...], *others: Any) -> P:
    """One of a frozen kind. Its COLUMNS stay packed until they are read: the driver receives
    thousands of completions a second, and most of what it does needs none of their tuples."""
    made = kind.__new__(kind)
    object.__setattr__(made, "packed", packed)
    for name, value in zip(kind.UNPACKED, others, strict=True):
        object.__setattr__(made, name, value)
    return made


Table = tuple[list[Any], list[tuple[Any, ...]]]  # COLUMNS and UNPACKED, each [records]


def table(records: Sequence[Packed]) -> Table:
    """Many records of a kind by columns, which pickle in less time and memory than one by one."""
    if not records:
        return [], []
    columns = zip(*(each.pack() for each in records), strict=True)
    others = zip(*map(type(records[0]).OTHERS, records), strict=True)
    return [_joined(column) for column in columns], list(others)


def records(kind: type[P], table: Table) -> list[P]:
    """What `table` was given."""
    columns, others = table
    packed = zip(*map(_parted, columns), strict=True)
    return [record(kind, *each) for each in zip(packed, *others, strict=True)]


def _joined(column: Sequence[Any]) -> Any:
    """[records] packed numbers of one kind as (code, sizes in bytes, bytes of all, an array because
    Ray writes its memory into the object store without a copy), others as they are."""
    codes = {
        each[0] if type(each) is tuple and len(each) == 2 and type(each[1]) is bytes else None
        for each in column
    }
    (code,) = codes if len(codes) == 1 else (None,)
    if code is None:
        return column
    data = [each[1] for each in column]
    return code, [len(each) for each in data], np.frombuffer(b"".join(data), np.uint8)


def _parted(column: Any) -> Sequence[Any]:
    """What `_joined` was given."""
    if not isinstance(column[0], str):
        return column
    code, sizes, data = column
    ends = [*itertools.accumulate(sizes)]
    return [(code, data[end - size : end].tobytes()) for size, end in zip(sizes, ends, strict=True)]

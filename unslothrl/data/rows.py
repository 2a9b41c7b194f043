"""Rows in order, each a dict, of which only those that are asked for are held in memory: what has
`len(rows)` and `rows[i]`, as a list or a data set of the `datasets` library."""

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Row = dict[str, Any]


class Rows(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


class TextRows:
    """Rows of a text file, read when asked for. `starts` has their first bytes and the byte after
    the last, int64 [rows + 1]; `parse` takes a row's text with whatever stands before the next."""

    def __init__(self, path: Path, starts: np.ndarray, parse: Callable[[str], Row]):
        self.starts, self.parse, self.file = starts, parse, path.open("rb")

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Row:
        begin, end = int(self.starts[index]), int(self.starts[index + 1])
        self.file.seek(begin)
        return self.parse(self.file.read(end - begin).decode("utf-8"))


class TableRows:
    """Rows of an Arrow table."""

    def __init__(self, table: Any):
        self.table = table

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, index: int) -> Row:
        return self.table.slice(index, 1).to_pylist()[0]


class JoinedRows:
    """The rows of several files, one after the other."""

    def __init__(self, parts: Mapping[Path, Rows]):
        self.paths, self.parts = list(parts), list(parts.values())
        self.ends = list(itertools.accumulate(map(len, self.parts)))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> Row:
        which = bisect.bisect_right(self.ends, index)
        return self.parts[which][index - (self.ends[which] - len(self.parts[which]))]


class PickedRows:
    """Some rows of a source, in an order of their own."""

    def __init__(self, rows: Rows, indices: Sequence[int] | np.ndarray):
        self.rows, self.indices = rows, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Row:
        return self.rows[int(self.indices[index])]


def number_of(rows: Rows, index: int) -> int:
    """The number of a row in its source, from 1 on, however it was picked."""
    while isinstance(rows, PickedRows):
        index = int(rows.indices[index])
        rows = rows.rows
    return index + 1


def file_of(rows: Rows | None, number: int) -> Path | None:
    """The file in a folder that a row came from, by its number as in `number_of`."""
    while isinstance(rows, PickedRows):
        rows = rows.rows
    if not isinstance(rows, JoinedRows):
        return None
    return rows.paths[bisect.bisect_right(rows.ends, number - 1)]

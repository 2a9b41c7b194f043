"""Rows in order, each a dict, of which only those that are asked for are held in memory.

What a list of dicts can do, as far as it is needed: `len(rows)` and `rows[i]`. A data set of the
`datasets` library can do it too.
"""

import bisect
import csv
import io
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from unslothrl import long_json
from unslothrl.errors import UserError

Row = dict[str, Any]


class Rows(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


class TextRows:
    """Rows of a text file: where each begins is known, and it is read when asked for.

    `starts` has their first bytes and the byte after the last one, int64 [rows + 1]; `parse` takes
    a row's text with whatever stands before the next.
    """

    def __init__(self, path: Path, starts: np.ndarray, parse: Callable[[str], Row]):
        self.starts, self.parse = starts, parse
        self.file, self.path = path.open("rb"), path

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Row:
        begin, end = int(self.starts[index]), int(self.starts[index + 1])
        self.file.seek(begin)
        return self.parse(self.file.read(end - begin).decode("utf-8"))


class CsvParser:
    """One record of a CSV file as a dict."""

    def __init__(self, header: list[str], options: dict[str, Any]):
        self.header, self.options = header, options  # as `csv.reader` takes them

    def __call__(self, text: str) -> Row:
        fields = next(csv.reader(io.StringIO(text, newline=""), **self.options))
        return dict(zip(self.header, fields, strict=True))


_first_json = json.JSONDecoder().raw_decode


def parse_json(text: str) -> Row:
    """The object that a text begins with; a comma or line break may follow it."""
    text = text.lstrip()
    try:
        return _first_json(text)[0]
    except ValueError:  # an integer of more digits than Python takes otherwise
        with long_json.any_length():
            return _first_json(text)[0]


class TableRows:
    """Rows of an Arrow table in memory."""

    def __init__(self, table: Any, path: Path):
        self.table, self.path = table, path

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, index: int) -> Row:
        return row_of(self.table, index, f"{self.path} row {index + 1}")


def validated(table: Any) -> Any:
    """A table or batch whose texts and lists lie inside of it: Arrow itself takes a file's word for
    that, and would read elsewhere. ValueError."""
    table.validate(full=True)
    return table


def row_of(table: Any, index: int, where: str) -> Row:
    """A row of an Arrow table. UserError for what Python cannot hold, such as dates beyond the year
    9999."""
    try:
        return table.slice(index, 1).to_pylist()[0]
    except (ValueError, OverflowError, TypeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"dataset {where} cannot be read ({reason:.200}): export it again"
        ) from None


class BatchRows:
    """Rows of an Arrow file too large for memory: one of its record batches is held at a time."""

    def __init__(self, reader: Any, lengths: Sequence[int], path: Path):
        self.reader, self.path = reader, path
        self.ends = list(itertools.accumulate(lengths))
        self.held: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, index: int) -> Row:
        which = bisect.bisect_right(self.ends, index)
        if self.held[0] != which:
            self.held = (which, self.batch(which))
        batch = self.held[1]
        start = self.ends[which] - batch.num_rows
        return row_of(batch, index - start, f"{self.path} row {index + 1}")

    def batch(self, which: int) -> Any:
        try:
            return validated(self.reader.get_batch(which))
        except ValueError as error:  # ArrowInvalid is one
            reason = " ".join(str(error).split())
            raise UserError(
                f"dataset {self.path} is damaged ({reason:.200}): get it again"
            ) from None


class JoinedRows:
    """Several sources, one after the other."""

    def __init__(self, parts: Sequence[Rows]):
        self.parts = parts
        self.ends = list(itertools.accumulate(map(len, parts)))

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
    """The file that a row came from, by its number as in `number_of`; None where it has none."""
    while isinstance(rows, PickedRows):
        rows = rows.rows
    if isinstance(rows, JoinedRows):
        return file_of(rows.parts[bisect.bisect_right(rows.ends, number - 1)], 1)
    return getattr(rows, "path", None)


def joined(parts: Sequence[Rows]) -> Rows:
    return parts[0] if len(parts) == 1 else JoinedRows(parts)

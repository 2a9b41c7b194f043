"""Rows, and local files as rows: JSON, JSONL, CSV, TSV, Parquet, Arrow; compressed by gzip too.

A file is read through once, so that every fault is found before a run begins. Of an object a line
only its position is kept, Arrow and large Parquet files stay on disk, and the rest is held. The
`datasets` library would read such files differently: it makes dates of answers like "2020-01-01"
and numbers of "007", and adds nulls for keys that a row does not have.
"""

import bisect
import codecs
import contextlib
import csv
import gzip
import itertools
import json
import os
import shlex
import shutil
import tempfile
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from unslothrl.data.formats import parsed
from unslothrl.errors import UserError
from unslothrl.files import Unreadable, is_file
from unslothrl.text import MOST_NESTED, one_line, shown

IN_MEMORY = 256 << 20  # bytes of a table that is read whole; larger ones stay on disk
LONGEST_ROW = 64 << 20  # bytes
CHUNK = 1 << 20
BOM = codecs.BOM_UTF8  # Windows begins files with it
GZIP = ".gz"
FAULTS = (OSError, EOFError, ValueError, NotImplementedError, zlib.error, csv.Error)  # of files
DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a |"}
Row = dict[str, Any]


class Rows(Protocol):
    """Rows in order, read as they are asked for: a list or a data set of `datasets` is one too."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


class LazyRows:
    """`count` rows, each of which `row_at` reads when it is asked for."""

    def __init__(self, count: int, row_at: Callable[[int], Row]):
        self.count, self.row_at = count, row_at

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Row:
        return self.row_at(index)


class PickedRows(LazyRows):
    """Some rows of a source, in an order of their own."""

    def __init__(self, rows: Rows, indices: Sequence[int] | np.ndarray):
        super().__init__(len(indices), lambda index: rows[int(indices[index])])
        self.rows, self.indices = rows, indices


def joined(parts: Sequence[Rows]) -> LazyRows:
    """The rows of several files, one after the other."""
    ends = list(itertools.accumulate(map(len, parts)))

    def row_at(index: int) -> Row:
        which = bisect.bisect_right(ends, index)
        return parts[which][index - (ends[which] - len(parts[which]))]

    return LazyRows(ends[-1], row_at)


def kind_of(name: str) -> str | None:
    """The ending of a file's name that says how it is read, None where none does."""
    path = Path(name.lower().removesuffix(GZIP))
    return path.suffix if path.suffix in READERS else None


def read(path: Path) -> Rows:
    """The rows of a file. UserError where it is not there, empty, or damaged."""
    kind = kind_of(path.name)
    if kind is None:
        raise UserError(f"dataset {path}: unknown kind of file: use {', '.join(READERS)}")
    if not is_file(path):
        raise UserError(f"dataset {path}: no such file: check the path")
    try:
        with unpacked(path, kind) as file:
            rows = READERS[kind](file)
    except FAULTS as error:
        raise UserError(f"dataset {path}: {fault(path, error)}") from None
    if not len(rows):
        raise UserError(f"dataset {path}: it is empty: give a file with at least 2 rows")
    return rows


def below(folder: Path) -> Iterator[Path]:
    """The files in a folder and below it, without hidden ones."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


@contextlib.contextmanager
def unpacked(path: Path, kind: str) -> Iterator[Path]:
    """The file, or a copy of what gzip has compressed, which rows can read after it is deleted."""
    if path.suffix.lower() != GZIP:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=kind) as copy:
        with gzip.open(path) as packed:
            shutil.copyfileobj(packed, copy)
        copy.flush()
        yield Path(copy.name)


def fault(path: Path, error: Exception) -> str:
    """What is wrong with a file that cannot be read, and what to do about it."""
    if isinstance(error, Unreadable):
        return str(error)
    if not isinstance(error, UnicodeError) or kind_of(path.name) in (".parquet", ".arrow"):
        return f"it cannot be read, or is damaged ({one_line(error)}): get it again"
    return (
        "it is no text in UTF-8: save it as CSV UTF-8, convert it (iconv -f UTF-16, or "
        f"WINDOWS-1252, -t UTF-8 {shlex.quote(path.name)} > NEW), or give its name the ending of "
        "what it is"
    )


def decoded(data: bytes) -> str:
    """UnicodeError for what is not UTF-8, and for a zero byte, which no text has."""
    if b"\0" in data:
        raise UnicodeError("a byte is zero")
    return data.decode("utf-8")


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """(the byte that it begins at, the line) of each line of a text. UnicodeError."""
    with path.open("rb") as file:
        begin = len(BOM) if file.read(len(BOM)) == BOM else 0
        file.seek(begin)
        while line := file.readline(LONGEST_ROW):
            yield begin, decoded(line)
            begin += len(line)


def read_json(path: Path) -> Rows:
    """A list of objects, or one object with rows or columns, is read whole; JSONL is not."""
    with path.open("rb") as file:
        is_list = file.read(CHUNK).removeprefix(BOM).lstrip().startswith(b"[")
    if is_list or path.stat().st_size <= IN_MEMORY:
        rows = rows_in(parsed(decoded(path.read_bytes().removeprefix(BOM))))
        if rows is not None:
            return rows
    return read_lines(path)


def rows_in(whole: Any) -> list[Row] | None:
    """Those of a list of objects, or of one object with a list or columns; None of all else."""
    if isinstance(whole, list) and all(isinstance(row, dict) for row in whole):
        return whole
    if not isinstance(whole, dict):
        return None
    lists = {  # but for those that are the turns of a conversation
        name: value
        for name, value in whole.items()
        if isinstance(value, list)
        and value
        and all(isinstance(row, dict) and not {"role", "from"} & row.keys() for row in value)
    }
    if len(lists) > 1:
        raise Unreadable(f"it has several lists of rows ({', '.join(lists)}): write each to a file")
    if lists:
        return next(iter(lists.values()))
    columns = [list(v.values()) if isinstance(v, dict) else v for v in whole.values()]
    lengths = {len(column) if isinstance(column, list) else 0 for column in columns}
    if len(columns) < 2 or len(lengths) != 1 or lengths == {0}:
        return None
    return [dict(zip(whole, values, strict=True)) for values in zip(*columns, strict=True)]


def read_lines(path: Path) -> Rows:
    """An object a line, of which only the place is kept. Unreadable."""
    starts = array("q")
    for begin, line in lines_of(path):
        if line.strip():
            if not isinstance(parsed(line), dict):
                raise Unreadable(
                    f"row {len(starts) + 1} is no JSON object of at most {MOST_NESTED} levels: "
                    'write {"problem": ..., "answer": ...}, each object on one line, as jq -c does'
                )
            starts.append(begin)
    file = path.open("rb")

    def row_at(index: int) -> Row:
        file.seek(starts[index])
        return json.loads(file.readline())

    return LazyRows(len(starts), row_at)


def read_csv(path: Path) -> Rows:
    """Records under a header; every value is text."""
    csv.field_size_limit(LONGEST_ROW)
    options = dialect_of(path)
    records = csv.reader((line for _, line in lines_of(path)), strict=True, **options)
    header = [name.strip() for name in next(records, [])]
    refuse_repeated(header)
    rows = []
    for fields in filter(None, records):
        if len(fields) != len(header):
            raise Unreadable(
                f"line {records.line_num} has {len(fields)} fields, the header {len(header)}: fix "
                f"it, or quote fields that hold {DELIMITERS[options['delimiter']]}"
            )
        rows.append(dict(zip(header, fields, strict=True)))
    return rows


def refuse_repeated(columns: list[str]) -> None:
    """Unreadable where two columns have the same name."""
    if len(set(columns)) < len(columns):
        name = next(name for name in columns if columns.count(name) > 1)
        raise Unreadable(f"its header has {shown(name)} twice: rename one")


def dialect_of(path: Path) -> dict[str, Any]:
    """For `csv.reader`: the delimiter that the header has most of, else a comma (.tsv: a tab)."""
    with path.open("rb") as file:
        header = file.readline(LONGEST_ROW).decode("utf-8", errors="replace")
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    delimiter = max((usual, *DELIMITERS), key=header.count)
    return {"delimiter": delimiter, "skipinitialspace": f"{delimiter} " in header}


def read_parquet(path: Path) -> Rows:
    """Through the cache of the `datasets` library where it has over `IN_MEMORY` bytes."""
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    groups = range(file.metadata.num_row_groups)
    if sum(file.metadata.row_group(i).total_byte_size for i in groups) <= IN_MEMORY:
        return table_rows(file.read())
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset("parquet", data_files=str(path), split="train")


def read_arrow(path: Path) -> Rows:
    """An Arrow file or, as the `datasets` library writes it, an Arrow stream; it stays on disk."""
    import pyarrow

    memory = pyarrow.memory_map(str(path))
    is_file = memory.read(6) == b"ARROW1"
    memory.seek(0)
    opened = pyarrow.ipc.open_file(memory) if is_file else pyarrow.ipc.open_stream(memory)
    return table_rows(opened.read_all())


def table_rows(table: Any) -> Rows:
    """ValueError for texts and lists outside of the table, which Arrow would read elsewhere."""
    table.validate(full=True)
    refuse_repeated(table.schema.names)
    return LazyRows(table.num_rows, lambda index: table.slice(index, 1).to_pylist()[0])


READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": read_lines,
    ".ndjson": read_lines,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
}

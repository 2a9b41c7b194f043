"""Local files as rows: JSON, JSONL, CSV, TSV, Parquet, Arrow; compressed by gzip too.

A text file is gone through once, so that everything that is wrong with it is known, with its line,
before a run begins; of each row only where it stands is kept. Tables are read whole up to
`IN_MEMORY` bytes; larger ones are left on disk.
"""

import codecs
import gzip
import json
import tempfile
import zlib
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from unslothrl import long_json
from unslothrl.data.csv_files import read_csv
from unslothrl.data.lines import (
    BOM,
    CHUNK,
    LONGEST_ROW,
    lines_of,
    one_line,
    refuse,
    refuse_encoding,
    refuse_repeated,
    with_end,
)
from unslothrl.data.rows import (
    BatchRows,
    Row,
    Rows,
    TableRows,
    TextRows,
    parse_json,
    validated,
)
from unslothrl.errors import UserError
from unslothrl.files import is_file

IN_MEMORY = 256 << 20  # bytes of a table that is read whole
GZIP = ".gz"
MOST_RATIO = 100  # of what is unpacked to its file; of zeros it is 1,030
ADVICE = {  # for files that are no data sets yet
    ".xlsx": "save the sheet as CSV UTF-8",
    ".xls": "save the sheet as CSV UTF-8",
    ".ods": "save the sheet as CSV UTF-8",
    ".zip": "unpack it and give the folder",
    ".tar": "unpack it and give the folder",
    ".tgz": "unpack it and give the folder",
    ".zst": "unpack it with zstd -d, or compress it by gzip",
    ".bz2": "unpack it with bunzip2, or compress it by gzip",
    ".xz": "unpack it with unxz, or compress it by gzip",
}


def kind_of(name: str) -> str | None:
    """The ending of a file's name that says how it is read, None where none does."""
    path = Path(name.lower().removesuffix(GZIP))
    return path.suffix if path.suffix in READERS else None


def read(path: Path) -> Rows:
    """The rows of a file. UserError where it is not there, empty, or damaged."""
    kind = kind_of(path.name)
    if kind is None:
        advice = ADVICE.get(path.suffix.lower(), f"use {', '.join(READERS)}")
        raise UserError(f"dataset {path}: unknown kind of file: {advice}")
    if not is_file(path):
        raise UserError(f"dataset {path}: no such file: check the path")
    try:
        is_packed = path.suffix.lower() == GZIP
        rows = unpacked(path, kind) if is_packed else READERS[kind](path)
    except OSError as error:
        refuse(path, f"it cannot be read ({error.strerror or one_line(error)}): check it")
    if not len(rows):
        refuse(path, "it is empty: give a file with at least 2 rows")
    return rows


def unpacked(path: Path, kind: str) -> Rows:
    """The rows of a file that gzip has compressed: of a copy in a temporary file, whose name is
    gone when this returns. UserError, OSError."""
    with tempfile.NamedTemporaryFile(suffix=kind) as copy:
        try:
            unpack(path, copy)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            refuse(path, f"it is incomplete ({one_line(error)}): get it again")
        copy.flush()
        try:
            rows: Any = READERS[kind](Path(copy.name))
            with suppress(AttributeError):  # a list has none
                rows.path = path
            return rows
        except UserError as error:
            said = str(error).replace(copy.name, str(path))
            raise UserError(said.replace(Path(copy.name).name, path.name)) from None


def unpack(path: Path, copy: IO[bytes]) -> None:
    """Writes what gzip has compressed into `copy`. UserError where that is so much more that it can
    be no text: it would fill the disk. OSError, EOFError, zlib.error."""
    size, most = 0, max(LONGEST_ROW, MOST_RATIO * path.stat().st_size)
    with gzip.open(path) as file:
        while piece := file.read(CHUNK):
            size += len(piece)
            if size > most:
                refuse(path, f"it unpacks to over {most >> 20:,} MB, {MOST_RATIO} times its size: "
                       "no text does, unpack it yourself")  # fmt: skip
            copy.write(piece)


def read_lines(path: Path) -> Rows:
    """JSONL: an object a line; empty lines are passed over."""
    starts, last = array("q"), 0
    for number, (begin, end, text) in enumerate(lines_of(path), start=1):
        if text.strip():
            check_object(path, text, f"line {number}")
            starts.append(begin)
            last = end
    return TextRows(path, with_end(starts, last), parse_json)


def check_object(path: Path, text: str, where: str) -> None:
    """UserError where a line is not JSON, or not an object."""
    try:
        row = long_json.loads(text)
    except (ValueError, RecursionError) as error:
        is_cut = isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip())
        fix = "write each object on one line, as jq -c does" if is_cut else "fix or remove the line"
        refuse(path, f"{where} is not JSON ({reason_of(error)}): {fix}")
    if not isinstance(row, dict):
        refuse(
            path,
            f"{where} must be an object, got {type(row).__name__}: "
            'write {"problem": ..., "answer": ...}',
        )
    check_depth(path, text, row, where)


def check_depth(path: Path, text: str, row: Any, where: str) -> None:
    """UserError for a row that is nested too deeply."""
    if long_json.is_too_deep(text, row):
        refuse(path, f"{where} has over {long_json.MOST_NESTED} levels of nesting: flatten it")


def reason_of(error: Exception) -> str:
    """What is wrong with one line of JSON; the parser's own counts lines inside of it."""
    if isinstance(error, json.JSONDecodeError):
        return f"column {error.colno}: {error.msg}"
    return one_line(error)


def read_json(path: Path) -> Rows:
    """A list of objects; or, as the hub names many files, an object a line; or an object that holds
    such a list, or a list for each column."""
    with path.open("rb") as file:
        first = file.read(CHUNK).removeprefix(BOM).lstrip()[:1]
    if first == b"[":
        return read_array(path)
    nested = read_nested(path) if path.stat().st_size <= IN_MEMORY else None
    return read_lines(path) if nested is None else nested


def read_nested(path: Path) -> list[Row] | None:
    """The rows of a file that is one object with a list of objects in it, or with columns as lists
    or by number, as pandas writes them; None for any other. UserError where it has several lists.
    """
    try:
        text = path.read_text("utf-8-sig")
        whole = long_json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(whole, dict):
        return None
    check_depth(path, text, whole, "it")
    lists = {name: value for name, value in whole.items() if is_rows(value)}
    if len(lists) > 1:
        refuse(path, f"it has several lists of rows ({', '.join(lists)}): write each to a file")
    if lists:
        return next(iter(lists.values()))
    columns = [list(v.values()) if isinstance(v, dict) else v for v in whole.values()]
    lengths = {len(column) if isinstance(column, list) else -1 for column in columns}
    if len(columns) < 2 or len(lengths) != 1 or lengths <= {-1, 0}:
        return None
    return [dict(zip(whole, values, strict=True)) for values in zip(*columns, strict=True)]


def is_rows(value: Any) -> bool:
    """Whether this is a list of objects that are no turns of a conversation."""
    return (
        isinstance(value, list)
        and value != []
        and all(isinstance(row, dict) and not {"role", "from"} & row.keys() for row in value)
    )


def read_array(path: Path) -> Rows:
    """The objects of a long list, which is not held in memory whole."""
    text = Window(path)
    text.skip("[")
    starts, last = array("q"), 0
    while text.peek() != "]":
        if starts:
            text.skip(",")
        begin, last = text.object(len(starts) + 1)
        starts.append(begin)
    text.skip("]")
    if text.peek():
        refuse(path, f"line {text.line} goes on after the list: fix the file")
    return TextRows(path, with_end(starts, last), parse_json)


class Window:
    """The part of a JSON file that is being read."""

    def __init__(self, path: Path):
        self.path, self.file = path, path.open("rb")
        self.text, self.at = "", 0  # what has been read, and how far it has been used
        self.byte, self.line = 0, 1  # where `at` stands in the file
        self.decode = codecs.getincrementaldecoder("utf-8")().decode
        if self.file.read(len(BOM)) == BOM:
            self.byte = len(BOM)
        self.file.seek(self.byte)
        self.parse = json.JSONDecoder().raw_decode

    def more(self) -> bool:
        """Reads on. -> False at the end of the file."""
        data = self.file.read(CHUNK)
        try:
            text = self.decode(data, not data)
        except UnicodeDecodeError as error:
            refuse_encoding(self.path, self.file.tell() - len(data) + error.start)
        if "\0" in text:
            refuse_encoding(
                self.path, self.file.tell() - len(data) + data.find(b"\0"), is_zero=True
            )
        self.text, self.at = self.text[self.at :] + text, 0
        return bool(data)

    def grow(self) -> bool:
        """Reads on until there is twice as much: a long row is not parsed at every piece. -> False
        at the end of the file."""
        before = len(self.text) - self.at
        while self.more() and len(self.text) < 2 * before:
            pass
        return len(self.text) > before

    def use(self, end: int) -> None:
        """Moves on to `end` in the text."""
        part = self.text[self.at : end]
        self.byte += len(part.encode())
        self.line += part.count("\n")
        self.at = end

    def peek(self) -> str:
        """The next character that is not blank, "" at the end."""
        while True:
            rest = self.at
            while rest < len(self.text) and self.text[rest] in " \t\r\n":
                rest += 1
            self.use(rest)
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more() and not self.text:
                return ""

    def skip(self, character: str) -> None:
        """Moves behind the next character that is not blank. UserError where it is another."""
        following = self.peek()
        if following != character:
            refuse(
                self.path,
                f"it is not JSON (line {self.line}: {character!r} was expected, "
                f"got {following or 'the end'!r}): fix it, or name the file .jsonl if it has one "
                "object a line",
            )
        self.use(self.at + 1)

    def object(self, number: int) -> tuple[int, int]:
        """-> the bytes of the next element."""
        if self.peek() != "{":
            refuse(self.path, f"must be a list of objects, row {number} is none: use [{{...}}]")
        while True:
            try:
                row, end = self.parse(self.text, self.at)
                break
            except (ValueError, RecursionError) as error:
                line = self.line + self.text.count("\n", self.at, getattr(error, "pos", self.at))
                reason = getattr(error, "msg", one_line(error))
            if len(self.text) - self.at > LONGEST_ROW or not self.grow():
                refuse(self.path, f"line {line} is not JSON ({reason}): fix it")
        check_depth(self.path, self.text[self.at : end], row, f"row {number}")
        begin = self.byte
        self.use(end)
        return begin, self.byte


def read_parquet(path: Path) -> Rows:
    """A Parquet file, in memory up to `IN_MEMORY` bytes."""
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        refuse_repeated(path, file.schema_arrow.names)
        groups = range(file.metadata.num_row_groups)
        if sum(file.metadata.row_group(i).total_byte_size for i in groups) <= IN_MEMORY:
            return TableRows(validated(file.read()), path)
    except (pyarrow.ArrowException, ValueError) as error:  # the latter of names that are no text
        refuse(path, f"it is not Parquet, or damaged ({one_line(error)}): export it again")
    return from_datasets(path, "parquet")


def read_arrow(path: Path) -> Rows:
    """An Arrow file or, as the `datasets` library writes it, an Arrow stream."""
    import pyarrow

    is_small = path.stat().st_size <= IN_MEMORY
    try:
        reader = pyarrow.ipc.open_file(pyarrow.OSFile(str(path)))
    except pyarrow.ArrowException:
        reader = None
    try:
        if reader is None and is_small:
            table = pyarrow.ipc.open_stream(pyarrow.OSFile(str(path))).read_all()
            refuse_repeated(path, table.schema.names)
            return TableRows(validated(table), path)
        if reader is not None:
            refuse_repeated(path, reader.schema.names)
            if is_small:
                return TableRows(validated(reader.read_all()), path)
            batches = range(reader.num_record_batches)
            return BatchRows(reader, [reader.get_batch(i).num_rows for i in batches], path)
    except (pyarrow.ArrowException, ValueError) as error:
        refuse(path, f"it is not Arrow, or damaged ({one_line(error)}): export it again")
    return from_datasets(path, "arrow")


def from_datasets(path: Path, kind: str) -> Any:
    """A table that the `datasets` library keeps on disk, as Arrow in its cache."""
    import datasets

    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(kind, data_files=str(path), split="train")
    except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as error:
        refuse(path, f"it cannot be read ({one_line(error)}): export it again")


READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": read_lines,
    ".ndjson": read_lines,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
}

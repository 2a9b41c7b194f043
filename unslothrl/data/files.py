"""Local files as rows: JSON, JSONL, CSV, TSV, Parquet, Arrow.

A text file is gone through once, so that everything that is wrong with it is known, with its line,
before a run begins; of each row only where it stands is kept. Tables are read whole up to
`IN_MEMORY` bytes; larger ones are left on disk.
"""

import codecs
import csv
import json
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from unslothrl import long_json
from unslothrl.data.rows import BatchRows, CsvParser, Rows, TableRows, TextRows, parse_json
from unslothrl.errors import UserError
from unslothrl.files import is_file

LONGEST_ROW = 64 << 20  # bytes
IN_MEMORY = 256 << 20  # bytes of a table that is read whole
CHUNK = 1 << 20
BOM = codecs.BOM_UTF8  # Windows begins files with it


def read(path: Path) -> Rows:
    """The rows of a file. UserError where it is not there, empty, or damaged."""
    if path.suffix.lower() not in READERS:
        raise UserError(f"dataset {path}: unknown kind of file: use {', '.join(READERS)}")
    if not is_file(path):
        raise UserError(f"dataset {path}: no such file: check the path")
    try:
        rows = READERS[path.suffix.lower()](path)
    except OSError as error:
        refuse(path, f"it cannot be read ({error.strerror or one_line(error)}): check it")
    if not len(rows):
        refuse(path, "it is empty: give a file with at least 2 rows")
    return rows


def refuse(path: Path, what: str) -> NoReturn:
    """Raises UserError that names the file."""
    raise UserError(f"dataset {path}: {what}")


def one_line(error: Exception) -> str:
    """An error's message without line breaks, cut to 200 characters."""
    return " ".join(str(error).split())[:200]


def read_lines(path: Path) -> Rows:
    """JSONL: an object a line; empty lines are passed over."""
    starts, last = array("q"), 0
    for number, (begin, end, text) in enumerate(lines_of(path), start=1):
        if text.strip():
            check_object(path, text, f"line {number}")
            starts.append(begin)
            last = end
    return TextRows(path, with_end(starts, last), parse_json)


def with_end(starts: array, end: int) -> np.ndarray:
    """Where rows begin, and where the last one ends."""
    starts.append(end)
    return np.frombuffer(starts, np.int64)


def lines_of(path: Path) -> Iterator[tuple[int, int, str]]:
    """(first byte, the byte after the last, text) of every line."""
    begin = 0
    with path.open("rb") as file:
        if file.read(len(BOM)) == BOM:
            begin = len(BOM)
        file.seek(begin)
        while line := file.readline(LONGEST_ROW + 1):
            if len(line) > LONGEST_ROW:
                refuse(path, f"a line is longer than {LONGEST_ROW >> 20} MB: is it JSONL?")
            yield begin, begin + len(line), decoded(path, line, begin)
            begin += len(line)


def decoded(path: Path, data: bytes, begin: int) -> str:
    """The text of bytes that begin at `begin` of the file. UserError where they are not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        refuse(path, f"byte {begin + error.start} is not UTF-8: save it as UTF-8")


def check_object(path: Path, text: str, where: str) -> None:
    """UserError where a line is not JSON, or not an object."""
    try:
        row = long_json.loads(text)
    except (ValueError, RecursionError) as error:
        refuse(path, f"{where} is not JSON ({reason_of(error)}): fix or remove the line")
    if not isinstance(row, dict):
        refuse(
            path,
            f"{where} must be an object, got {type(row).__name__}: "
            'write {"problem": ..., "answer": ...}',
        )


def reason_of(error: Exception) -> str:
    """What is wrong with one line of JSON; the parser's own counts lines inside of it."""
    if isinstance(error, json.JSONDecodeError):
        return f"column {error.colno}: {error.msg}"
    return one_line(error)


def read_json(path: Path) -> Rows:
    """A list of objects; or, as the hub names many files, an object a line."""
    with path.open("rb") as file:
        first = file.read(CHUNK).removeprefix(BOM).lstrip()[:1]
    return read_array(path) if first == b"[" else read_lines(path)


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
            at = self.file.tell() - len(data) + error.start
            refuse(self.path, f"byte {at} is not UTF-8: save it as UTF-8")
        self.text, self.at = self.text[self.at :] + text, 0
        return bool(data)

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
                _, end = self.parse(self.text, self.at)
                break
            except (ValueError, RecursionError) as error:
                line = self.line + self.text.count("\n", self.at, getattr(error, "pos", self.at))
                reason = getattr(error, "msg", one_line(error))
            if len(self.text) - self.at > LONGEST_ROW or not self.more():
                refuse(self.path, f"line {line} is not JSON ({reason}): fix it")
        begin = self.byte
        self.use(end)
        return begin, self.byte


def read_csv(path: Path) -> Rows:
    """Records under a header; every value is text."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    csv.field_size_limit(LONGEST_ROW)
    lines = Lines(path)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    starts, last = array("q"), 0
    header: list[str] | None = None
    try:
        while True:
            begin = lines.end
            fields = next(reader, None)
            if fields is None:
                break
            if header is None:
                header = check_header(path, fields)
            elif fields and len(fields) != len(header):
                refuse(
                    path,
                    f"line {reader.line_num} has {len(fields)} fields, the header {len(header)}: "
                    "fix it, or quote fields that hold a comma",
                )
            elif fields:
                starts.append(begin)
                last = lines.end
    except csv.Error as error:
        refuse(path, f"line {reader.line_num} is not CSV ({error}): fix it")
    parser = CsvParser(header or [], delimiter)
    return TextRows(path, with_end(starts, last), parser)


class Lines:
    """The lines of a file, and the byte after the last that was given out."""

    def __init__(self, path: Path):
        self.lines, self.end = lines_of(path), 0

    def __iter__(self) -> "Lines":
        return self

    def __next__(self) -> str:
        _, self.end, text = next(self.lines)
        return text


def check_header(path: Path, header: list[str]) -> list[str]:
    """The names of a CSV file's columns. UserError where one stands twice."""
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        refuse(path, f"its header has {twice[0]!r} twice: rename one")
    return header


def read_parquet(path: Path) -> Rows:
    """A Parquet file, in memory up to `IN_MEMORY` bytes."""
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        groups = range(file.metadata.num_row_groups)
        if sum(file.metadata.row_group(i).total_byte_size for i in groups) <= IN_MEMORY:
            return TableRows(file.read())
    except pyarrow.ArrowException as error:
        refuse(path, f"it is not Parquet ({one_line(error)}): export it again")
    return from_datasets(path, "parquet")


def read_arrow(path: Path) -> Rows:
    """An Arrow file or, as the `datasets` library writes it, an Arrow stream."""
    import pyarrow

    is_small = path.stat().st_size <= IN_MEMORY
    try:
        reader = pyarrow.ipc.open_file(pyarrow.OSFile(str(path)))
        if is_small:
            return TableRows(reader.read_all())
        batches = range(reader.num_record_batches)
        return BatchRows(reader, [reader.get_batch(i).num_rows for i in batches])
    except pyarrow.ArrowException:
        pass
    try:
        if is_small:
            return TableRows(pyarrow.ipc.open_stream(pyarrow.OSFile(str(path))).read_all())
    except pyarrow.ArrowException as error:
        refuse(path, f"it is not Arrow ({one_line(error)}): export it again")
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

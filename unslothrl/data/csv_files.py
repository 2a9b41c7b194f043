"""CSV and TSV: records under a header, whatever separates their fields."""

import csv
import re
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unslothrl.data.lines import (
    BOM,
    LONGEST_ROW,
    lines_of,
    one_line,
    refuse,
    refuse_repeated,
    with_end,
)
from unslothrl.data.rows import CsvParser, Rows, TextRows

DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a |"}
SNIFFED, SNIFFED_BYTES = 200, 1 << 18  # lines and bytes that a delimiter is told from


def read_csv(path: Path) -> Rows:
    """Records under a header, separated as `dialect_of` finds; every value is text."""
    csv.field_size_limit(LONGEST_ROW)
    dialect = dialect_of(path)
    lines = Lines(path)
    if dialect.is_named:
        next(lines)
    reader = csv.reader(lines, strict=True, **dialect.options)
    starts, last = array("q"), 0
    header: list[str] | None = None
    try:
        while True:
            begin = lines.end
            fields = next(reader, None)
            if fields is None:
                break
            if header is None:
                header = check_header(path, fields) if fields else None
            elif fields and len(fields) != len(header):
                refuse(
                    path,
                    f"line {reader.line_num} has {len(fields)} fields, the header {len(header)}: "
                    f"fix it, or quote fields that hold {dialect.name}",
                )
            elif fields:
                starts.append(begin)
                last = lines.end
    except csv.Error as error:
        refuse(path, f"line {reader.line_num} is not CSV ({one_line(error)}): fix it")
    parser = CsvParser(header or [], dialect.options)
    return TextRows(path, with_end(starts, last), parser)


@dataclass(frozen=True)
class Dialect:
    """How the fields of a CSV file are separated."""

    delimiter: str = ","
    has_spaces: bool = False  # after each delimiter
    is_named: bool = False  # by a first line such as "sep=;", which Excel writes

    @property
    def options(self) -> dict[str, Any]:
        return {"delimiter": self.delimiter, "skipinitialspace": self.has_spaces}

    @property
    def name(self) -> str:
        return DELIMITERS[self.delimiter]


def dialect_of(path: Path) -> Dialect:
    """By the first `SNIFFED` lines: the delimiter by which most records have as many fields as the
    header, the most of them where several do; a comma (a tab in .tsv) where none separates."""
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open("rb") as file:
        head = file.read(SNIFFED_BYTES).removeprefix(BOM)
    first, *rest = head.decode("utf-8", errors="replace").splitlines(keepends=True) or [""]
    named = re.fullmatch(r"sep=(.)\s*", first)
    if named is not None and named[1] in DELIMITERS:
        return Dialect(named[1], False, True)
    if first.strip().count('"') % 2:
        return Dialect(usual)  # a header over several lines
    counts = {delimiter: fields_of([first, *rest[:SNIFFED]], delimiter) for delimiter in DELIMITERS}
    scores = {d: (min(c[0], 2), agreement(c), c[0], d == usual) for d, c in counts.items()}
    delimiter = max(scores, key=lambda each: scores[each])
    if counts[delimiter][0] < 2:
        delimiter = usual
    return Dialect(delimiter, bool(re.search(re.escape(delimiter) + " ", first)))


def fields_of(lines: list[str], delimiter: str) -> list[int]:
    """The number of fields of each record, the header's first; blank lines are none."""
    try:
        return [len(fields) for fields in csv.reader(lines, delimiter=delimiter) if fields] or [0]
    except csv.Error:
        return [0]


def agreement(counts: list[int]) -> float:
    """The share of records that have as many fields as the header. The last may be cut off."""
    others = counts[1:-1] or counts[1:]
    return sum(count == counts[0] for count in others) / len(others) if others else 1.0


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
    header = [name.strip() for name in header]
    refuse_repeated(path, header)
    return header

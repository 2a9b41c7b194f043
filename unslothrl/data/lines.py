"""The lines of a text file with where they stand in it, and what is said of a wrong file."""

import codecs
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from unslothrl.errors import UserError

LONGEST_ROW = 64 << 20  # bytes
CHUNK = 1 << 20
BOM = codecs.BOM_UTF8  # Windows begins files with it


def refuse(path: Path, what: str) -> NoReturn:
    """Raises UserError that names the file."""
    raise UserError(f"dataset {path}: {what}")


def one_line(error: Exception) -> str:
    """An error's message without line breaks, cut to 200 characters."""
    return " ".join(str(error).split())[:200]


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
        refuse_encoding(path, begin + error.start)


def refuse_encoding(path: Path, byte: int) -> NoReturn:
    """UserError for a file that is not UTF-8, with a guess at what it is."""
    with path.open("rb") as file:
        head = file.read(2)
    name = "UTF-16" if head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else None
    what = f"it is {name}" if name else f"byte {byte} is not UTF-8"
    refuse(
        path,
        f"{what}: save it as UTF-8, or: iconv -f {name or 'WINDOWS-1252'} -t UTF-8 {path.name} > "
        "NEW",
    )

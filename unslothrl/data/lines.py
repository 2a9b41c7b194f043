"""The lines of a text file with where they stand in it, and what is said of a wrong file."""

import codecs
import shlex
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from unslothrl.errors import UserError
from unslothrl.untrusted import printable, shown

LONGEST_ROW = 64 << 20  # bytes
CHUNK = 1 << 20
BOM = codecs.BOM_UTF8  # Windows begins files with it
NO_TEXT = {  # by their first bytes
    b"PK\x03\x04": "it is a spreadsheet or a zip file: save the sheet as CSV UTF-8, or unpack it",
    b"\xd0\xcf\x11\xe0": "it is a spreadsheet of Excel: save the sheet as CSV UTF-8",
    b"\x1f\x8b": "it is compressed by gzip: add .gz to its name",
    b"\x28\xb5\x2f\xfd": "it is compressed by zstd: unpack it with zstd -d",
    b"BZh": "it is compressed by bzip2: unpack it with bunzip2",
    b"\xfd7zXZ": "it is compressed by xz: unpack it with unxz",
    b"PAR1": "it is Parquet: name it .parquet",
    b"ARROW1": "it is Arrow: name it .arrow",
}
UTF16: dict[str, Callable[[bytes], bool]] = {
    "UTF-16": lambda head: head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
    "UTF-16LE": lambda head: head[:1] != b"\0" and head[1:2] == b"\0",
    "UTF-16BE": lambda head: head[:1] == b"\0" and head[1:2] != b"\0",
}


def refuse(path: Path, what: str) -> NoReturn:
    """Raises UserError that names the file."""
    raise UserError(f"dataset {path}: {what}")


def refuse_repeated(path: Path, columns: Sequence[str]) -> None:
    """UserError where two columns have the same name."""
    name, count = Counter(columns).most_common(1)[0] if columns else ("", 0)
    if count > 1:
        refuse(path, f"its header has {shown(name)} twice: rename one")


def one_line(error: Exception) -> str:
    """An error's message in one line of 200 characters, without what would steer a terminal."""
    return printable(" ".join(str(error).split())[:200])


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
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        refuse_encoding(path, begin + error.start)
    if b"\0" in data:  # valid, but in no text: this is UTF-16 without a mark, or no text at all
        refuse_encoding(path, begin + data.index(b"\0"), is_zero=True)
    return text


def refuse_encoding(path: Path, byte: int, is_zero: bool = False) -> NoReturn:
    """UserError for a file that is not UTF-8, with a guess at what it is; or that has a zero byte,
    which is UTF-8 but in no text."""
    with path.open("rb") as file:
        head = file.read(8)
    for beginning, what in NO_TEXT.items():
        if head.startswith(beginning):
            refuse(path, what)
    name = next((name for name, has_it in UTF16.items() if has_it(head)), None)
    if is_zero and name is None:
        refuse(path, f"byte {byte} is zero, which no text has: remove it, or give another file")
    what = f"it is {name}" if name else f"byte {byte} is not UTF-8"
    quoted = shlex.quote(path.name)
    refuse(
        path,
        f"{what}: save it as UTF-8, or: iconv -f {name or 'WINDOWS-1252'} -t UTF-8 {quoted} > NEW",
    )

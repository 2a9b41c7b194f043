"""Files of JSON lines, which a killed process may have left without the end of the last one."""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unslothrl.untrusted import shown

LONGEST_LINE = 64 << 20  # bytes


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; a last line without its line feed is incomplete and left out.

    Raises ValueError for any other line that is no JSON object.
    """
    rows = []
    for number, row in numbered_objects(path):
        if isinstance(row, str):
            raise ValueError(f"{path}, line {number} {row}")
        rows.append(row)
    return rows


def numbered_objects(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """(number of the line, its object or what is wrong with it), of all whole lines of a regular
    file; none of what is not there. ValueError for a line without end, or that cannot be read."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number in itertools.count(1):
            try:
                line = file.readline(LONGEST_LINE)
            except OSError as error:
                said = f"{path}, line {number} cannot be read ({error.strerror})"
                raise ValueError(said) from None
            if not line.endswith(b"\n"):
                if len(line) == LONGEST_LINE:
                    raise ValueError(f"{path}, line {number} is over {LONGEST_LINE >> 20} MB long")
                return
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"is not JSON: {shown(str(error), 200)[1:-1]}"
                continue
            yield number, row if isinstance(row, dict) else "is no object"


def is_terminated(path: Path) -> bool:
    """Whether a file ends with a line feed. ValueError for one that cannot be read."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            return file.read(1) == b"\n"
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None


def drop_incomplete_line(file) -> None:
    """Truncates `file`, open for reading and appending, after its last line feed."""
    end = file.seek(0, os.SEEK_END)
    if end:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)

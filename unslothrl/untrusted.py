"""Small files that may hold anything: read without blocking, and never more than a limit; and
what they hold, shortened for a message, and without what would steer a terminal."""

import json
import stat
from pathlib import Path
from typing import Any

from unslothrl.redaction import redacted

MOST_CODE = 1 << 20  # bytes of a user's Python file


class Unreadable(ValueError):
    """A file that is not what it has to be; says why."""


def read_text(path: Path, most: int, encoding: str = "utf-8-sig") -> str:
    """The text of a regular file of at most `most` bytes, without the mark with which Windows
    begins files. Raises Unreadable."""
    data = read_bytes(path, most)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable(f"byte {error.start} is not UTF-8") from None


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises Unreadable."""
    if "\0" in str(path):
        raise Unreadable("its name has a null byte")
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for its writer
            raise Unreadable("it is a folder" if path.is_dir() else "it is not a regular file")
        with path.open("rb") as file:
            data = file.read(most + 1)  # the size of what lies under /proc is 0
    except OSError as error:
        raise Unreadable(f"it cannot be read ({error.strerror})") from None
    if len(data) > most:
        size = max(status.st_size, len(data))
        raise Unreadable(f"it has {size:,} bytes, at most {most:,} are read")
    return data


def read_object(path: Path, most: int) -> dict[str, Any]:
    """The JSON object in a file of at most `most` bytes. Raises Unreadable."""
    text = read_text(path, most, "utf-8")  # other libraries refuse a mark before JSON
    try:
        value = json.loads(text)
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError as error:  # not JSON, or an integer of thousands of digits
        raise Unreadable(f"it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise Unreadable(f"it must be an object, got {shown(value)}")
    return value


def shown(value: Any, most: int = 60) -> str:
    """A value of any type and size for a message: printable and short."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 1000:
        return f"an integer of about {int(value.bit_length() * 0.30103):,} digits"
    try:
        text = ascii(value) if not isinstance(value, str) else repr(value[: most + 1])
    except (RecursionError, ValueError):
        return f"a deeply nested {type(value).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


def plain(value: Any, most: int = 100) -> str:
    """As `shown`, without quotes: as it is written on a command line."""
    return shown(value, most)[1:-1] if isinstance(value, str) else shown(value, most)


def printable(text: str, kept: str = "") -> str:
    """`text` with "?" for every control character but those in `kept`: names come from data sets
    and models, and a terminal would obey them."""
    return "".join(c if c.isprintable() or c in kept else "?" for c in text)


def for_terminal(text: str, kept: str = "") -> str:
    """`printable`, and without secrets: output is copied into files and bug reports."""
    return printable(redacted(text), kept)


def is_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8: one from JSON may hold half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

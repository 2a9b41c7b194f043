"""The columns of a row; how a text states its answer.

Below both `data`, which turns rows into tasks, and `rewards`, which say what they need of a row.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from unslothrl.text import is_too_deep, json_or_text, plain

MOST_SHOWN = 400  # characters of columns' names in a message


class UnusableRow(ValueError):
    """A row that cannot be trained on. The message says why."""


def attempt(read: Callable[[Mapping], Any], row: Mapping, errors: tuple = (UnusableRow,)) -> Any:
    """What `read` makes of a row, or the error that says why it cannot be used."""
    try:
        return read(row)
    except errors as error:
        return error


def value_of(row: Mapping, name: str) -> Any:
    """The value of a column, None without it. Dots go into what a column holds: "a.b"."""
    if name in row:
        return row[name]
    first, _, rest = name.partition(".")
    inside = parsed(row.get(first))
    return value_of(inside, rest) if rest and isinstance(inside, Mapping) else None


def parsed(value: Any) -> Any:
    """The object or list of a text that is JSON; any other value, or a deeper one, as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        found = json_or_text(value)
        return value if is_too_deep(value, found) else found
    return value


def plain_value(value: Any) -> Any:
    """A value in the types of JSON; others, such as dates, as text."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def names_of(row: Mapping) -> str:
    """The names of a row's columns, for a message."""
    return plain(", ".join(map(str, row)), MOST_SHOWN) or "none"


TAGS = ("<think>", "</think>", "<answer>", "</answer>")  # of the think-and-answer form
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)  # an escape takes the character after it along
_THOUSANDS = re.compile(r"([-+]?\$?)(\d{1,3}(?:,\d{3})+)(\.\d+)?")


def normalise(answer: str) -> str:
    """The answer as it is compared: trimmed, "1,234" as "1234"; "1,2" is not "12"."""
    answer = answer.strip()
    return answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer


def tagged(text: str) -> str | None:
    """Between the last `<answer>` and the `</answer>` after it; None without both, if cut off."""
    _, opening, rest = text.rpartition("<answer>")
    answer, closing, _ = rest.partition("</answer>")
    return answer.strip() if opening and closing else None


def boxed(text: str) -> str | None:
    """The content of the last box. None without a box that closes. Escaped braces do not count."""
    return next(reversed(boxes(text)), None)


def boxes(text: str) -> list[str]:
    """The content of each box that closes, in order; of nested boxes only the innermost's."""
    open_braces: list[int] = []
    spans: list[tuple[int, int]] = []
    last = -1
    for brace in _BRACES.finditer(text):
        at = brace.start()
        if brace[0] == "{":
            open_braces.append(at)
        elif brace[0] == "}" and open_braces:
            opened = open_braces.pop()
            if opened > last and text.endswith("\\boxed", 0, opened):
                last = opened
                spans.append((opened, at))
    return [text[opened + 1 : end].strip() for opened, end in spans]

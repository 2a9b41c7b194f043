"""Lines on a terminal, or in a pipe, a log file or a notebook's cell; and text of unknown origin
made fit for either."""

import os
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from unslothrl.untrusted import for_terminal

HANGING = 2  # columns
NOTEBOOKS = ("JPY_PARENT_PID", "COLAB_RELEASE_TAG")  # set inside a notebook's kernel


class Printer:
    """Writes lines: styled ones that scroll above a live area, or plain ones."""

    def __init__(self, console: Console, live: bool):
        self.console, self.live = console, live

    def line(self, line: str | Text, style: str = "", wraps: bool = False) -> None:
        """Prints a line. `Text` is not wrapped unless it is asked for, so that a path or command
        can be copied."""
        if isinstance(line, Text) and self.live:
            self.console.print(line, soft_wrap=not wraps)
        elif self.live:
            self._wrapped(for_terminal(str(line)), style)
        else:
            self.console.file.write(for_terminal(str(line)) + "\n")
            self.console.file.flush()

    def _wrapped(self, line: str, style: str) -> None:
        """Prints a line whose continuations stand further to the right than itself."""
        body = line.lstrip(" ")
        first = len(line) - len(body)
        room = max(1, self.console.width - 1 - first - HANGING)
        if cell_len(line) < self.console.width:
            self.console.print(Text(line, style))
            return
        for number, part in enumerate(Text(body).wrap(self.console, room)):
            indent = first + (HANGING if number else 0)
            self.console.print(Text(" " * indent + part.plain, style))

    @property
    def unicode(self) -> bool:
        return self.console.encoding.lower().startswith("utf")

    @property
    def arrow(self) -> str:
        return "→" if self.unicode and self.live else "->"

    @property
    def width(self) -> int:
        """The columns that a line may fill: a key's echo must not wrap it."""
        return self.console.width - 4

    def readable(self, text: str) -> str:
        """Text of a model or a data set on one line, as far as this terminal can show it."""
        line = for_terminal(" ".join(text.split()))
        if self.unicode:
            return line
        return line.encode("ascii", "replace").decode()


def can_redraw(console: Console) -> bool:
    """Whether the output is a terminal that can move its cursor."""
    isatty = getattr(console.file, "isatty", lambda: False)()
    return isatty and not console.is_dumb_terminal and not any(n in os.environ for n in NOTEBOOKS)


def clipped(text: str, most: int, mark: str = "...") -> str:
    """`text` in at most `most` columns: of a longer one its beginning and its end."""
    if len(text) > 4 * most:  # many characters have no width
        text = text[: 2 * most] + mark + text[len(text) - 2 * most :]
    if cell_len(text) <= most:
        return text
    room = max(0, most - cell_len(mark))
    head = of_width(text, (room + 1) // 2)
    tail = of_width(text[::-1], room - cell_len(head))[::-1]
    return of_width(head + mark, most) + tail


def of_width(text: str, most: int) -> str:
    """The beginning of `text` that fills at most `most` columns."""
    taken, width = [], 0
    for character in text:
        width += cell_len(character)
        if width > most:
            break
        taken.append(character)
    return "".join(taken)


def cut(line: Any, most: int, is_unicode: bool) -> Text:
    """A line of the live area in at most `most` columns."""
    text = line if isinstance(line, Text) else Text(line)
    text.truncate(most, overflow="ellipsis" if is_unicode else "crop")
    text.no_wrap = True
    return text

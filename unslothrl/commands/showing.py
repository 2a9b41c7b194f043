"""Answers on a terminal as they are drawn, side by side where it is wide enough, and in a pipe."""

import io
from collections.abc import Iterator, Mapping
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unslothrl.tracking.terminal import can_redraw
from unslothrl.untrusted import printable

WIDE = 100  # columns from which answers are shown side by side
MARGIN = 4  # lines of the terminal that columns leave free while they grow


def show(drawing: Mapping[str, Iterator[str]], out: TextIO) -> dict[str, str]:
    """Prints answers, by the name of what draws them, while they are drawn. -> the answers"""
    console = Console(file=out, highlight=False)
    if len(drawing) > 1 and can_redraw(console) and console.width >= WIDE:
        return in_columns(drawing, console)
    is_terminal = out.isatty()
    answers = {}
    for name, parts in drawing.items():
        if len(drawing) > 1:
            out.write(f"{name}:\n")
        answers[name] = stream(parts, out, is_terminal)
        out.write("\n\n" if len(drawing) > 1 and name != list(drawing)[-1] else "\n")
        out.flush()
    return answers


def stream(parts: Iterator[str], out: TextIO, is_terminal: bool) -> str:
    """Writes what each part adds to the one before. -> the last"""
    written = text = ""
    for text in parts:
        if text.startswith(written):
            out.write(visible(text[len(written) :]) if is_terminal else text[len(written) :])
            out.flush()
            written = text
    if written != text:  # a tokenizer that writes otherwise as it goes on
        out.write("\n" + (visible(text) if is_terminal else text))
    return text


def in_columns(drawing: Mapping[str, Iterator[str]], console: Console) -> dict[str, str]:
    """One after the other, each into its column."""
    answers = dict.fromkeys(drawing, "")
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        for name, parts in drawing.items():
            for answers[name] in parts:
                live.update(columns(answers, console.width, console.height - MARGIN))
    console.print(columns(answers, console.width))
    return answers


def columns(answers: Mapping[str, str], width: int, most: int | None = None) -> Table:
    """Of at most so many lines: the last of each."""
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0))
    console = Console(width=max(20, width // len(answers) - 2))
    cells = []
    for name, answer in answers.items():
        table.add_column(name, ratio=1, header_style="bold", overflow="fold")
        lines = Text(visible(answer)).wrap(console, console.width, overflow="fold")
        cells.append(Text("\n").join(lines[-most:] if most is not None else lines))
    table.add_row(*cells)
    return table


def visible(text: str) -> str:
    """`text` without control characters that would move a terminal's cursor."""
    return printable(text, kept="\n\t")


def lenient(stream: TextIO) -> TextIO:
    """A stream of text in which bytes that are not UTF-8 are read as U+FFFD."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream

"""What a wrong command line is answered with, in one line."""

import sys
import traceback
from typing import Any

from unslothrl.config import names
from unslothrl.text import for_terminal, printable, redacted

LONGEST = 1000  # characters of a message
EXTRA = (
    "options are written --NAME VALUE with two hyphens; put a value with spaces between quotes, "
    "leave no space behind a backslash, repeat an option for each of several values, and give "
    "several files as their folder"
)


def crash(error: Exception) -> str:
    """The last line about an exception that nobody foresaw; prints its traceback before, without
    secrets."""
    from unslothrl.cluster.causes import summary_of

    text = redacted("".join(traceback.format_exception(error)), guess=True)
    print(printable(text, kept="\n"), file=sys.stderr, end="")
    return f"internal error, {summary_of(error)}: please report it with the lines above"


def one_line(message: str) -> str:
    """A message as it is printed. What it quotes may come from a file: it does not steer the
    terminal, and of a long one the middle is left out."""
    line = for_terminal(" ".join(message.split()))
    if len(line) <= LONGEST:
        return line
    return f"{line[: LONGEST * 2 // 3]} [...] {line[-LONGEST // 3 + 7 :]}"


def usage_message(error: Any) -> str:
    """What Click refused of the command line, with our own hint where Click has none."""
    said = error.format_message().rstrip(".")
    if "does not take a value" in said:
        off = names.off(error.option_name.lstrip("-"))
        return f"{said}: write it alone, or --{off} to turn it off"
    ctx = getattr(error, "ctx", None)
    if ctx is None:
        return said
    if hasattr(error, "possibilities"):
        flags = [flag.lstrip("-") for each in ctx.command.params for flag in each.opts]
        command = ctx.command_path.partition(" ")[2]
        return names.unknown(error.option_name.lstrip("-"), flags, command)
    hint = EXTRA if "unexpected extra argument" in said else f"see {ctx.command_path} --help"
    return f"{said}: {hint}"

"""What answers the policy between its turns. One file each; a new file here is a new environment,
and a class of the user's own, `file.py:Class`, is one too: see docs/environments.md.

Imports nothing but the standard library, as `base`.
"""

import functools
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unslothrl.errors import UserError
from unslothrl.files import expanded, is_file
from unslothrl.text import json_or_text, plain

if TYPE_CHECKING:
    from unslothrl.environments.host import Setup

SINGLE_TURN = "single_turn"
TOOLS = ("python",)  # of this package, that need nothing but their name
SEARCH = "search:"
PARTS = {"__main__", "base", "corpus", "forms", "host", "server", "tool_calls", "tools"}


@functools.cache
def names() -> tuple[str, ...]:
    """The environments of this package. In a single turn the rewards judge the completion: nothing
    runs in between, and no process is started."""
    files = {module.name for module in pkgutil.iter_modules(__path__)}
    return tuple(sorted({SINGLE_TURN, *files - PARTS}))


def check(name: str) -> None:
    """UserError where there is none. Its file is tried in a process of its own."""
    file, separator, _ = name.rpartition(":")
    if not separator and name not in names():
        raise UserError(
            f"environment {plain(name)} is not one of {', '.join(names())}: set --environment "
            "file.py:Class for one of your own, or of the repository's examples"
        )
    if separator and not is_file(expanded(file)):
        raise UserError(f"environment {plain(name)}: no such file: check the path")


def check_tools(texts: Sequence[str]) -> list[str]:
    """-> notes on what is left out. UserError: no tool, or nothing to search in."""
    notes = []
    for text in texts:
        if (path := corpus_of(text)) is not None:
            from unslothrl.environments.corpus import passages  # needs NumPy

            found, dropped = passages(path)
            if dropped:
                notes.append(
                    f"tools {plain(text)}: {dropped:,} without text are left out, {len(found):,} "
                    "passages are searched"
                )
        elif text not in TOOLS and not is_file(expanded(text)):
            known = ", ".join([*TOOLS, f"{SEARCH}FILE"])
            raise UserError(
                f"tools {plain(text)}: no such file: check the path, or set one of {known}"
            )
    return notes


def corpus_of(text: str) -> str | None:
    """FILE of search:FILE, None for another tool."""
    return text.removeprefix(SEARCH) if text.startswith(SEARCH) else None


def absolute_tool(text: str) -> str:
    """The same tool, a file or folder by its whole path."""
    if text in (*TOOLS, SEARCH):
        return text
    before = SEARCH if text.startswith(SEARCH) else ""
    return f"{before}{expanded(text.removeprefix(before)).absolute()}"


def options_of(texts: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE -> the value as JSON where it is that, else as text. Raises UserError."""
    options: dict[str, Any] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.isidentifier():
            raise UserError(f"environment_options {plain(text)}: write KEY=VALUE")
        options[key] = json_or_text(value)
    return options


def setup_of(name: str, of_tools: Sequence[str] = (), **limits: Any) -> "Setup | None":
    """What runs the episodes of an environment by its name, and of tools; None where a turn is all
    that there is. `limits` are those of `Setup`."""
    if name == SINGLE_TURN and not of_tools:
        return None
    from unslothrl.environments.host import Setup

    if name == SINGLE_TURN:
        return Setup(tools=tuple(of_tools), **limits)
    file, separator, attribute = name.rpartition(":")
    if not separator:
        file, attribute = str(Path(__file__).parent / f"{name}.py"), "ENVIRONMENT"
    return Setup(str(expanded(file)), attribute, tools=tuple(of_tools), **limits)

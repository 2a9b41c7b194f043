"""What a wrong command line is answered with, in one line."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from unslothrl.config import values
from unslothrl.config.options import OPTIONS
from unslothrl.config.values import kind
from unslothrl.untrusted import plain


def unknown_command(name: str, commands: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.lower(), commands, 1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(commands)}"
    return f"{plain(name)} is not a command: {hint}"


def usage_message(error: Any, commands: Mapping[str, Any]) -> str:
    """What the parser refused, in our words where we have better ones; `commands` by name."""
    flag = getattr(error, "option_name", None)
    name = flag.lstrip("-").replace("-", "_") if flag else None
    context = getattr(error, "ctx", None)
    command = context.info_name if context is not None else "train"
    if name and hasattr(error, "possibilities"):
        return unknown_flag(name, command, commands)
    if name in OPTIONS and kind(name) is not bool:
        return f"--{name} needs a value: set e.g. --{name} {values.example(name)}"
    return f"{error.format_message().rstrip('.')}: see unslothrl {command} --help"


def unknown_flag(name: str, command: str, commands: Mapping[str, Any]) -> str:
    """The message for a flag that a command does not have."""
    flags = [flag.name for flag in commands[command].params] if command in commands else []
    if not flags or set(OPTIONS) <= set(flags):
        return values.unknown_option(name)
    near = difflib.get_close_matches(name, flags, 1)
    hint = f"did you mean --{near[0]}?" if near else f"see unslothrl {command} --help"
    return f"--{name} is not an option of {command}: {hint}"

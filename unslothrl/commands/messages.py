"""What a wrong command line is answered with, in one line."""

import difflib
import itertools
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from unslothrl.config import other_names, values
from unslothrl.config.options import OPTIONS
from unslothrl.config.values import kind
from unslothrl.redaction import redacted
from unslothrl.untrusted import for_terminal, plain, printable

LONGEST = 1000  # characters of a message
NAMES_OF_CARDS = dict.fromkeys(("vram", "gpu", "gpus", "gpu_memory", "vram_gb", "memory"), "card")
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # that web pages make of hyphens
EXTRA = re.compile(r"unexpected extra argument\S* \((.*)\)", re.DOTALL)


def crash(error: Exception) -> str:
    """The last line about an exception that nobody foresaw; prints its traceback before, without
    secrets."""
    from unslothrl.cluster.failures import summary_of

    text = redacted("".join(traceback.format_exception(error)), guess=True)
    print(printable(text, kept="\n"), file=sys.stderr, end="")
    return f"unexpected {summary_of(error)}: a fault of this program: report it with these lines"


def one_line(message: str) -> str:
    """A message as it is printed. What it quotes may come from a file: it does not steer the
    terminal, and of a long one the middle is left out."""
    line = for_terminal(" ".join(message.split()))
    if len(line) <= LONGEST:
        return line
    return f"{line[: LONGEST * 2 // 3]} [...] {line[-LONGEST // 3 + 7 :]}"


def unknown_command(name: str, commands: Sequence[str]) -> str:
    if name.replace("-", "_") in OPTIONS:
        return f"{name} is not a command but an option: write --{name}"
    near = difflib.get_close_matches(name.lower(), commands, 1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(commands)}"
    return f"{plain(name)} is not a command: {hint}"


def usage_message(error: Any, commands: Mapping[str, Any], arguments: Sequence[str]) -> str:
    """What the parser refused of the `arguments`, in our words where we have better ones;
    `commands` by name."""
    flag: str = getattr(error, "option_name", None) or ""
    name = flag.lstrip("-").replace("-", "_")
    context = getattr(error, "ctx", None)
    command = context.info_name if context is not None else "train"
    if name and hasattr(error, "possibilities"):
        return unknown_flag(name, command, commands, following(flag, arguments))
    if (extra := EXTRA.search(error.format_message())) is not None:
        return unknown_argument(extra[1], command, commands, arguments)
    if "not take a value" in error.format_message():
        off = f", and --no_{name} turns it off" if name in OPTIONS else ""
        return f"--{name} takes no value: write it alone{off}"
    if name in OPTIONS and kind(name) is not bool:
        return f"--{name} needs a value: set e.g. --{name} {values.example(name)}"
    return f"{error.format_message().rstrip('.')}: see unslothrl {command} --help"


def unknown_argument(
    text: str, command: str, commands: Mapping[str, Any], arguments: Sequence[str]
) -> str:
    """The message for words that a command does not take; other systems write NAME=VALUE."""
    if not text.strip():
        return "an argument is empty or a space: is there a space behind a backslash?"
    word = text.split()[0]
    if (bare := word.lstrip(DASHES)) != word:
        return f"{plain(word)} begins with a long dash, not with hyphens: write --{plain(bare)}"
    name, is_pair, _ = word.partition("=")
    name = name.replace("-", "_")
    if is_pair and name in OPTIONS:
        return f"{plain(word)}: options are flags here: write --{plain(word.replace('=', ' ', 1))}"
    if is_pair:
        return unknown_flag(plain(name), command, commands)
    if word in values.choices_of("learner"):
        return f"{word} is not an argument of {command}: set --learner {word}"
    flag = flag_before(word, arguments)
    params = {each.name: each for each in commands[command].params} if command in commands else {}
    if flag not in params:
        return (
            f"{plain(word)} is not an argument of {command}: put what has spaces between quotes, "
            f"and see unslothrl {command} --help"
        )
    said = f"{plain(word)}: --{flag} takes one value"
    if params[flag].multiple:
        return f"{said}: repeat it, --{flag} {plain(word)}"
    return f"{said}: put it between quotes, or give the folder of several files"


def flag_before(word: str, arguments: Sequence[str]) -> str:
    """The name of the flag whose value stands right before a word, "" where none does."""
    at = arguments.index(word) if word in arguments else 0
    flag = arguments[at - 2] if at > 1 else ""
    return flag[2:].replace("-", "_") if flag.startswith("--") else ""


def following(flag: str, arguments: Sequence[str]) -> str:
    """The argument behind a flag, "" where there is none."""
    return next((b for a, b in itertools.pairwise(arguments) if a == flag), "")


def unknown_flag(name: str, command: str, commands: Mapping[str, Any], value: str = "") -> str:
    """The message for a flag that a command does not have. Its `value` may be one that it has, as
    in --format json."""
    flags = [flag.name for flag in commands[command].params] if command in commands else []
    for meant in (NAMES_OF_CARDS.get(name), value):
        if meant in flags:
            return f"--{name} is not an option of {command}: set --{meant}"
    if not flags or set(OPTIONS) <= set(flags):
        return values.unknown_option(name, also=[each for each in flags if each not in OPTIONS])
    others = [each for each in commands if name in {flag.name for flag in commands[each].params}]
    ours = [each for each in other_names.ours(name) if each in flags]
    if ours:
        hint = f"set {' and '.join(f'--{each}' for each in ours)}"
    elif near := difflib.get_close_matches(name, flags, 1, 0.8 if others else 0.6):
        hint = f"did you mean --{near[0]}?"
    elif others:
        hint = f"it is one of {' and '.join(others)}: see unslothrl {command} --help"
    else:
        hint = f"see unslothrl {command} --help"
    return f"--{name} is not an option of {command}: {hint}"

"""Values of options as they are read: from flags, from TOML, each checked on its own."""

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unslothrl.algorithms import objectives
from unslothrl.config.options import OPTIONS, is_optional, kind
from unslothrl.config.writing import toml_value
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded
from unslothrl.untrusted import Unreadable, plain, read_text, shown

EMBEDDED_RECIPE = "tiny-cpu"  # what trains the embedded base
RECIPE_FOLDERS = (Path(__file__).parents[2] / "recipes", Path(__file__).parents[1] / "recipes")
RECIPES = {path.stem: path for folder in RECIPE_FOLDERS for path in sorted(folder.glob("*.toml"))}
MOST_TEXT = 65_536  # characters
MOST_RECIPE = 1 << 20  # bytes
LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){64}""")


def read_recipe(name: str) -> dict[str, Any]:
    """The options of a recipe: a .toml file, or the name of one in recipes/. Raises UserError."""
    if exists(name):
        return read_toml(expanded(name))
    if name not in RECIPES:
        raise UserError(
            f"recipe {plain(name)} is neither a .toml file nor a recipe's name: set --recipe "
            f"FILE.toml or one of {', '.join(sorted(RECIPES))}"
        )
    return read_toml(RECIPES[name])


def read_toml(path: Path) -> dict[str, Any]:
    """The options in a file, each checked on its own. Raises UserError."""
    try:
        text = read_text(path, MOST_RECIPE)
    except Unreadable as error:
        raise UserError(f"recipe {path}: {error}: give a .toml file") from None
    if LONG_KEY.search(text):  # which the parser would take minutes for
        raise UserError(
            f"recipe {path}: no option has a key of 64 parts: write lines like lr = 2e-5"
        )
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # no TOML, or a number or nesting without end
        nested = isinstance(error, RecursionError)
        reason = "nested too deeply" if nested else " ".join(str(error).split())
        raise UserError(
            f"recipe {path} is not TOML ({reason:.200}): write lines like lr = 2e-5"
        ) from None
    try:
        return {name: read_value(name, value, mend="{} = {}") for name, value in table.items()}
    except UserError as error:
        raise UserError(f"recipe {path}: {error}") from None


def read_value(name: str, value: Any, mend: str = "--{} {}") -> Any:
    """`value` of the option `name` in its own type and inside its limits. Raises UserError.

    Text is read as a flag's; `mend` is how the message writes a value that would do.
    """
    if name not in OPTIONS:
        raise UserError(unknown_option(name, mend))
    if value is None and is_optional(name):
        return None
    typed = _as_kind(name, value, is_flag=mend.startswith("--"))
    limits, choices = OPTIONS[name].metadata, choices_of(name)
    texts = typed if isinstance(typed, tuple) else (typed,) if isinstance(typed, str) else ()
    for problem in filter(None, map(text_problem, texts)):
        raise UserError(f"{name} must be text {problem}: shorten or rewrite it")
    if typed is None:
        wanted = _KINDS[kind(name)]
    elif choices and typed not in choices and not (name == "learner" and objectives.is_file(typed)):
        wanted = "one of " + ", ".join(choices) + (", or a .py file" if name == "learner" else "")
        near = difflib.get_close_matches(str(typed).lower(), choices, 1) or [choices[0]]
        raise UserError(
            f"{name} must be {wanted}, got {shown(typed)}: set "
            + mend.format(name, _written(near[0], mend))
        )
    elif _inside(typed, limits):
        return typed
    else:
        wanted = limits_text(name)
    raise UserError(
        f"{name} must be {wanted}, got {shown(value if typed is None else typed)}: set "
        + mend.format(name, _written(example(name, typed), mend))
    )


def choices_of(name: str) -> tuple[str, ...]:
    """What an option may be, where that is a list; `--learner` may be a file besides."""
    return objectives.names() if name == "learner" else OPTIONS[name].metadata.get("choices", ())


_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    tuple: "a list of text",
}


def _as_kind(name: str, value: Any, is_flag: bool) -> Any:
    """`value` in the option's own type, or None where it is of another."""
    wanted = kind(name)
    if is_flag and isinstance(value, str) and wanted in (int, float):
        try:
            return wanted(value)
        except ValueError:
            return None
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1023 else math.inf
    if wanted is tuple and isinstance(value, list | tuple | str):
        items = (value,) if isinstance(value, str) else tuple(value)
        return items if all(isinstance(item, str) and item for item in items) else None
    if wanted is str and value == "":
        return value if name == "system_prompt" else None
    return value if type(value) is wanted else None


def text_problem(text: str) -> str | None:
    """Why a text can be neither a path nor a prompt, None where it can."""
    if len(text) > MOST_TEXT:
        return f"of at most {MOST_TEXT:,} characters, got {len(text):,}"
    if "\0" in text:
        return f"without null bytes, got {shown(text)}"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return f"in UTF-8, got {shown(text)}"
    return None


def _inside(value: Any, limits: Mapping[str, Any]) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if isinstance(value, int) and abs(value) >= 2**53:
        return False
    return (
        ("over" not in limits or value > limits["over"])
        and ("at_least" not in limits or value >= limits["at_least"])
        and ("at_most" not in limits or value <= limits["at_most"])
    )


def limits_text(name: str) -> str:
    """The limits of a number in words, e.g. "over 0 and at most 1"; "" where there are none."""
    limits = OPTIONS[name].metadata
    words = [
        f"{word} {limits[key]:g}" if isinstance(limits[key], float) else f"{word} {limits[key]}"
        for key, word in (("over", "over"), ("at_least", "at least"), ("at_most", "at most"))
        if key in limits
    ]
    return " and ".join(words)


def example(name: str, typed: Any = None) -> Any:
    """A value that would do: the limit that was passed, where it is one, else the default."""
    limits, default = OPTIONS[name].metadata, OPTIONS[name].default
    if isinstance(typed, int | float) and abs(typed) < math.inf:
        if typed > limits.get("at_most", math.inf):
            return limits["at_most"]
        if typed < limits.get("at_least", -math.inf) and limits["at_least"] >= 1:
            return limits["at_least"]
    if default is None:
        return "TEXT" if kind(name) is str else limits.get("at_least", 1)
    return default


def _written(value: Any, mend: str) -> str:
    return str(value) if mend.startswith("--") else toml_value(value)


def unknown_option(name: str, mend: str = "--{} {}") -> str:
    """The message for an option that does not exist."""
    style = "--{}" if mend.startswith("--") else "{}"
    if name == "top_k":
        topk, top_k = style.format("topk"), style.format("sampling_top_k")
        return (
            f"{style.format(name)} is not an option: set {topk} (best candidates to train on) or "
            f"{top_k} (sampling from the k likeliest tokens)"
        )
    if re.search(r"tensor_(model_)?parallel|(^|_)tp(_size)?$", name.replace("-", "_").lower()):
        return (
            f"{style.format(name)} is not an option: vLLM does not split a 4-bit bitsandbytes base "
            f"over cards, every actor takes one: set {style.format('number_of_actors')}"
        )
    near = difflib.get_close_matches(name.replace("-", "_"), OPTIONS, 1)
    hint = f"did you mean {style.format(near[0])}?" if near else "see unslothrl train --help"
    return f"{style.format(name)} is not an option: {hint}"

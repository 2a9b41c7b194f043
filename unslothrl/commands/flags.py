"""Flags of the commands, made from the table of options."""

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from unslothrl.config.options import OPTIONS
from unslothrl.config.values import RUN, Table, choices_of, limits_text

OWN_DEFAULT = re.compile(r"[;:]? *default: .*$")  # of a help text
METAVARS = {int: "INTEGER", float: "NUMBER", str: "TEXT", bool: "", tuple: "TEXT"}


def with_options(
    function: Any,
    names: Sequence[str] = tuple(OPTIONS),
    table: Table = RUN,
    defaults: Mapping[str, str] | None = None,
) -> Any:
    """`function`, which takes **flags, with one typed parameter for each option instead, which
    typer reads its flags from; its other parameters come first. `defaults`: in words, what the
    command does without an option, where that is not the table's default."""
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind != parameter.VAR_KEYWORD
    ]
    parameters += [flag(name, table, (defaults or {}).get(name)) for name in names]
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    return function


def flag(name: str, table: Table = RUN, default: str | None = None) -> inspect.Parameter:
    """The command-line parameter of an option; its value arrives as text and is read by config."""
    kind = table.kind(name)
    is_bool, is_list = kind is bool, kind is tuple
    info = typer.Option(
        None,
        f"--{name}/--no_{name}" if is_bool else f"--{name}",
        help=help_text(name, table, default),
        metavar="NAME" if choices_of(name, table) else METAVARS[kind],
        show_default=False,
        rich_help_panel=table.options[name].metadata["group"],
    )
    annotation = list[str] | None if is_list else (bool if is_bool else str) | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=annotation
    )


def help_text(name: str, table: Table = RUN, default: str | None = None) -> str:
    """The option's help, its choices, unit, limits and default, which is `default` where that is
    given."""
    entry, choices = table.options[name], choices_of(name, table)
    said = entry.metadata["help"]
    if default is not None:
        said = OWN_DEFAULT.sub("", said)
    elif entry.default not in (None, ()):
        default = f"default {entry.default}"
    known_names = f"one of {', '.join(choices)}" if choices else None
    facts = [known_names, entry.metadata.get("unit"), limits_text(name, table), default]
    known = ", ".join(fact for fact in facts if fact)
    return f"{said} ({known})" if known else said


def without_limits(text: str, name: str) -> str:
    """A help text of the option without its limits, which are the same for all commands."""
    limits = limits_text(name)
    for found in (f"{limits}, ", f", {limits})", f" ({limits})") if limits else ():
        if found in text:
            return text.replace(found, ")" * found.startswith(", "), 1)
    return text


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that are there: name -> value."""
    return {name: value for name, value in flags.items() if value is not None and value != []}


def finite(value: float | None) -> float | None:
    """Refuses nan, which a number's limits let through."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value

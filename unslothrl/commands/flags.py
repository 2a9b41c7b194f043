"""Flags of the commands, made from the table of options."""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import typer

from unslothrl.config.options import OPTIONS
from unslothrl.config.values import RUN, Table, choices_of, limits_text

METAVARS = {int: "INTEGER", float: "NUMBER", str: "TEXT", bool: "", tuple: "TEXT"}


def with_options(function: Any, names: Sequence[str] = tuple(OPTIONS), table: Table = RUN) -> Any:
    """`function`, which takes **flags, with one typed parameter for each option instead, which
    typer reads its flags from; its other parameters come first."""
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind != parameter.VAR_KEYWORD
    ]
    parameters += [flag(name, table) for name in names]
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    return function


def flag(name: str, table: Table = RUN) -> inspect.Parameter:
    """The command-line parameter of an option; its value arrives as text and is read by config."""
    kind = table.kind(name)
    is_bool, is_list = kind is bool, kind is tuple
    info = typer.Option(
        None,
        f"--{name}/--no_{name}" if is_bool else f"--{name}",
        help=help_text(name, table=table),
        metavar="NAME" if choices_of(name, table) else METAVARS[kind],
        show_default=False,
        rich_help_panel=table.options[name].metadata["group"],
    )
    annotation = list[str] | None if is_list else (bool if is_bool else str) | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=annotation
    )


def help_text(name: str, limits: bool = True, table: Table = RUN) -> str:
    """The option's help, its choices, unit and default, and its limits if asked for."""
    entry, choices = table.options[name], choices_of(name, table)
    default = None if entry.default in (None, ()) else f"default {entry.default}"
    known_names = f"one of {', '.join(choices)}" if choices else None
    bounds = limits_text(name, table) if limits else None
    facts = [known_names, entry.metadata.get("unit"), bounds, default]
    known = ", ".join(fact for fact in facts if fact)
    return f"{entry.metadata['help']} ({known})" if known else entry.metadata["help"]


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that are there: name -> value."""
    return {name: value for name, value in flags.items() if value is not None and value != []}


def finite(value: float | None) -> float | None:
    """Refuses nan, which a number's limits let through."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value

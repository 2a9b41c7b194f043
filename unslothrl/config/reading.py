"""Recipes: options in a TOML file, each checked on its own."""

import re
import tomllib
from pathlib import Path
from typing import Any

from unslothrl.config.offline_options import TABLES
from unslothrl.config.values import RUN, Table, read_value
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded
from unslothrl.untrusted import Unreadable, plain, read_text, shown

EMBEDDED_RECIPE = "tiny-cpu"  # what trains the embedded base
RECIPE_FOLDERS = (Path(__file__).parents[2] / "recipes", Path(__file__).parents[1] / "recipes")
RECIPES = {path.stem: path for folder in RECIPE_FOLDERS for path in sorted(folder.glob("*.toml"))}

RUN_FILE = "config.toml"  # a run's, which has every option whatever recipe it began with
COMMAND = "command"  # in a recipe: the command that it is for, where that is not train
MOST_BYTES = 1 << 20
LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){64}""")


def read_table(path: Path) -> dict[str, Any]:
    """What a .toml file says, whatever that is. Raises ValueError."""
    try:
        return parsed(read_text(path, MOST_BYTES))
    except ValueError as error:
        raise ValueError(f"{path} is not TOML ({error})") from None


def parsed(text: str) -> dict[str, Any]:
    """The table that a text is as TOML. Raises ValueError."""
    if LONG_KEY.search(text):  # which the parser would take minutes for
        raise ValueError("no option has a key of 64 parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:  # no TOML, or a number without end
        raise ValueError(f"{' '.join(str(error).split()):.200}") from None


def read_recipe(name: str, table: Table = RUN) -> dict[str, Any]:
    """The options of a recipe: a .toml file, or the name of one in recipes/; see `read_toml`."""
    path = path_of(name)
    found = read_toml(path, table)
    if found.get("recipe") and path.name != RUN_FILE:
        raise UserError(
            f"recipe {path} names another recipe, {plain(found['recipe'])}: copy its lines instead"
        )
    return found


def path_of(name: str) -> Path:
    """The file of a recipe. UserError where there is none."""
    if exists(name):
        return expanded(name)
    if name not in RECIPES:
        raise UserError(
            f"recipe {plain(name)} is neither a .toml file nor a recipe's name: set --recipe "
            f"FILE.toml or one of {', '.join(sorted(RECIPES))}"
        )
    return RECIPES[name]


def command_of(name: str) -> str:
    """The command that a recipe is for. Raises UserError."""
    return str(entries(path_of(name)).get(COMMAND, RUN.command))


def entries(path: Path) -> dict[str, Any]:
    """What a recipe's file says. Raises UserError."""
    try:
        return parsed(read_text(path, MOST_BYTES))
    except Unreadable as error:
        raise UserError(f"recipe {path}: {error}: give a .toml file") from None
    except ValueError as error:
        raise UserError(
            f"recipe {path} is not TOML ({error}): write lines like lr = 2e-5"
        ) from None


def read_toml(path: Path, table: Table = RUN) -> dict[str, Any]:
    """The options in a file: name -> value. Raises UserError, also for one of another command."""
    found = entries(path)
    command = found.pop(COMMAND, table.command)
    if command != table.command:
        if command not in [RUN.command, *TABLES]:
            raise UserError(
                f"recipe {path}: {COMMAND} must be one of {', '.join((RUN.command, *TABLES))}, got "
                f"{shown(command)}: leave it out for {RUN.command}"
            )
        raise UserError(
            f"recipe {path} is for unslothrl {command}, not for {table.command}: use "
            f"unslothrl {command} --recipe"
        )
    for name, value in found.items():
        if isinstance(value, dict):
            raise UserError(
                f"recipe {path} has the section [{plain(name)}]: options have none, remove its line"
            )
    try:
        return {name: read_value(name, value, False, table) for name, value in found.items()}
    except UserError as error:
        raise UserError(f"recipe {path}: {error}") from None

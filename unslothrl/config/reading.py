"""Recipes: options in a TOML file, each checked on its own."""

import tomllib
from pathlib import Path
from typing import Any

from unslothrl.config.names import ALIASES, GONE, SECTION
from unslothrl.config.offline_options import TABLES
from unslothrl.config.values import RUN, Table, read_value
from unslothrl.errors import UserError
from unslothrl.files import Unreadable, exists, expanded, read_text
from unslothrl.text import plain, shown

EMBEDDED_RECIPE = "tiny-cpu"  # what trains the embedded base
RECIPE_FOLDERS = (Path(__file__).parents[2] / "recipes", Path(__file__).parents[1] / "recipes")
RECIPES = {path.stem: path for folder in RECIPE_FOLDERS for path in sorted(folder.glob("*.toml"))}

RUN_FILE = "config.toml"  # a run's, which has every option whatever recipe it began with
COMMAND = "command"  # in a recipe: the command that it is for, where that is not train
MOST_BYTES = 1 << 20


def read_table(path: Path) -> dict[str, Any]:
    """What a .toml file says, options of [objective] among the others. Raises ValueError."""
    found = tomllib.loads(read_text(path, MOST_BYTES))
    section = found.get(SECTION)
    if isinstance(section, dict):
        del found[SECTION]
        found |= section
    return found


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
        return read_table(path)
    except Unreadable as error:
        raise UserError(f"recipe {path}: {error}: give a .toml file") from None
    except ValueError as error:
        said = " ".join(str(error).split())
        raise UserError(
            f"recipe {path} is not TOML ({said:.200}): write lines like lr = 2e-5"
        ) from None


def read_toml(path: Path, table: Table = RUN) -> dict[str, Any]:
    """The options in a file: name -> value. The config.toml of an earlier version's run may set
    options that are gone: they are left out. Raises UserError, also for one of another command."""
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
    read: dict[str, Any] = {}
    for written, value in found.items():
        name = ALIASES.get(written, written)
        if isinstance(value, dict):
            raise UserError(
                f"recipe {path} has the section [{plain(name)}]: only [{SECTION}] is one, remove "
                "its line"
            )
        if name in GONE and path.name == RUN_FILE:
            continue
        try:
            read[name] = read_value(name, value, False, table)
        except UserError as error:
            raise UserError(f"recipe {path}: {error}") from None
    return read

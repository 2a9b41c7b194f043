"""Options in TOML files: recipes, each option checked on its own, and a run's config.toml."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unslothrl.config.offline_options import TABLES
from unslothrl.config.option import OBJECTIVE
from unslothrl.config.values import ALIASES, GONE, RUN, SECTION, Table, read_value, toml_value
from unslothrl.embedded import EMBEDDED, EMBEDDED_JSON
from unslothrl.errors import UserError
from unslothrl.files import Unreadable, exists, expanded, read_text
from unslothrl.text import plain, redacted, redacted_values

EMBEDDED_RECIPES = {EMBEDDED: "tiny-cpu", EMBEDDED_JSON: "json-cpu"}  # by the base that they train
RECIPE_FOLDERS = (Path(__file__).parents[2] / "recipes", Path(__file__).parents[1] / "recipes")
RECIPES = {path.stem: path for folder in RECIPE_FOLDERS for path in sorted(folder.glob("*.toml"))}

RUN_FILE = "config.toml"  # a run's, which has every option whatever recipe it began with
COMMAND = "command"  # in a recipe: the command that it is for, where that is not train


def read_recipe(name: str, table: Table = RUN, notes: list[str] | None = None) -> dict[str, Any]:
    """The options of a recipe: a .toml file, or the name of one in recipes/; see `read_toml`."""
    path = path_of(name)
    found = read_toml(path, table, notes)
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


def command_of(name: str | None) -> str:
    """The command that a recipe is for, train without one. Raises UserError."""
    return RUN.command if name is None else str(entries(path_of(name)).get(COMMAND, RUN.command))


def entries(path: Path) -> dict[str, Any]:
    """What a recipe's file says, options of [objective] among the others. Raises Unreadable."""
    try:
        found = tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise Unreadable(
            f"recipe {path} is not TOML ({said:.200}): write lines like lr = 2e-5"
        ) from None
    section = found.get(SECTION)
    if isinstance(section, dict):
        del found[SECTION]
        found |= section
    return found


def read_toml(path: Path, table: Table = RUN, notes: list[str] | None = None) -> dict[str, Any]:
    """The options in a file: name -> value. Those of earlier versions that are gone are left out,
    which `notes` says. UserError, also for one of another command."""
    found = entries(path)
    usual = RUN if path.name == RUN_FILE else table  # a run's own file names all other commands
    command = found.pop(COMMAND, usual.command)
    if command != table.command:
        raise UserError(
            f"recipe {path} is for unslothrl {plain(command)}, not for {table.command}: {COMMAND} "
            f"must be one of {', '.join((RUN.command, *TABLES))}"
        )
    gone = [name for name in GONE if found.pop(name, None) is not None]
    if gone and notes is not None:
        notes.append(f"recipe {path}: {', '.join(gone)} of an earlier version: left out")
    named = {ALIASES.get(name, name): value for name, value in found.items()}
    where = f"recipe {path}: "
    return {name: read_value(name, value, False, table, where) for name, value in named.items()}


def to_toml(options: Any, facts: Sequence[str] = ()) -> str:
    """All options as a recipe that reads back as the same, with secrets hidden; what is not set
    and `facts` are comments."""
    table = next(each for each in (RUN, *TABLES.values()) if each.config is type(options))
    lines = [
        "# All options of this run, as resolved. Usable as a recipe, --recipe FILE.toml, from any",
        "# folder: only output_dir is relative to where it is used.",
        *(f"# {plain(redacted(fact))}" for fact in facts),
    ]
    if table is not RUN:
        lines += ["", f"{COMMAND} = {toml_value(table.command)}"]
    groups = dict.fromkeys(entry.metadata["group"] for entry in table.options.values())
    for group in sorted(groups, key=lambda each: each == OBJECTIVE):  # a section comes last
        lines.append(f"\n[{SECTION}]" if group == OBJECTIVE else f"\n# {group}")
        for name, entry in table.options.items():
            if entry.metadata["group"] == group:
                value = redacted_values(getattr(options, name))
                is_part = entry.metadata.get("is_part")  # a function of the learner's file, or none
                unset = f"as {plain(Path(options.learner).name)} has it" if is_part else "not set"
                is_set = value is not None
                lines.append(f"{name} = {toml_value(value)}" if is_set else f"# {name} is {unset}")
    return "\n".join(lines) + "\n"

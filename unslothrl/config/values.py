"""What an option is called, here, in the field, in other systems and in earlier versions; and a
value of it: read in its own type and inside its limits, or refused with one that would do, as the
user writes it: --lr 2e-5, or in TOML lr = 2e-5."""

import difflib
import functools
import json
import math
import operator
import re
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import Field, fields
from typing import Any

from unslothrl.algorithms import objectives
from unslothrl.algorithms.objective import Objective
from unslothrl.config.option import OBJECTIVE
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.files import documented, is_file
from unslothrl.text import plain, shown

ALIASES = {  # names of the field -> DistRL-LLM's, which are canonical; both may be written
    "epochs": "episodes",
    "micro_batch_size": "train_batch_size",
    "lora_rank": "max_lora_rank",
    "num_generations": "num_candidates",
    "learning_rate": "lr",
    "gpu": "card",
}
GONE = ("ray_port", "ray_worker_ports", "ray_node_ip", "ray_temp_dir", "renderer")
SECTION = OBJECTIVE.lower()  # of a TOML file, and what its options' flags begin with
ROW = re.compile(r"^\| (`.*?`) \| (.*?) \|(?: (.*?) \|| \|)$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    tuple: "a list of text",
}

LIMITS = {"over": operator.gt, "at_least": operator.ge, "at_most": operator.le}


class Table:
    def __init__(self, config: type, command: str):
        self.config, self.command = config, command
        self.options: dict[str, Field] = {entry.name: entry for entry in fields(config)}
        self.types = typing.get_type_hints(config)

    def kind(self, name: str) -> type:
        """int, float, str, bool or tuple (of text): the type of a value when it is set."""
        hint = self.types[name]
        if isinstance(hint, types.UnionType):
            return typing.get_args(hint)[0]
        return typing.get_origin(hint) or hint

    def is_optional(self, name: str) -> bool:
        return isinstance(self.types[name], types.UnionType)

    def flag(self, name: str) -> str:
        """Its name with the section that it is in."""
        is_of_section = self.options[name].metadata["group"] == OBJECTIVE
        return f"{SECTION}.{name}" if is_of_section else name

    def spellings(self, name: str) -> list[str]:
        """What an option may be called on the command line, its own name first."""
        return [self.flag(name), *(alias for alias, of in ALIASES.items() if of == name)]

    @property
    def flags(self) -> list[str]:
        return [spelled for name in self.options for spelled in self.spellings(name)]


RUN = Table(Config, "train")


def off(flag: str) -> str:
    """What turns a switch off."""
    section, dot, name = flag.rpartition(".")
    return f"{section}{dot}no_{name}"


@functools.cache
def elsewhere() -> dict[str, tuple[list[str], str]]:
    """Names in other systems -> (flags here, what to know), from the tables of the page."""
    rows = ROW.findall(documented("coming-from.md"))
    return {
        theirs: (CODE.findall(here), about.replace("`", ""))
        for names, here, about in rows
        for theirs in CODE.findall(names)
    }


def unknown(name: str, flags: Collection[str], command: str = "train", dashes: str = "--") -> str:
    """The message for an option that `command` does not have. `dashes`: "" in a TOML file."""
    name = plain(name, 80)
    return f"{dashes}{name} is not an option of {command}: {_hint(name, flags, command, dashes)}"


def _hint(name: str, flags: Collection[str], command: str, dashes: str) -> str:
    """What to set instead. A dotted name is looked up whole, then without its first parts."""
    key = name.replace("-", "_").lower()
    parts = key.split(".")[-8:]
    for last in (".".join(parts[i:]) for i in range(len(parts))):
        for own in (last, f"{SECTION}.{last}"):
            if own in flags:
                return f"set {dashes}{own}"
        here, about = elsewhere().get(last, ([], ""))
        if about and not here:
            return f"{about}: leave it out"
        if here and {flag.split()[0].removeprefix("--") for flag in here} <= {*flags}:
            named = " and ".join(dashes + flag.removeprefix("--") for flag in here)
            return f"set {named}" + (f" ({about})" if about else "")
    near = difflib.get_close_matches(key, flags, 1, 0.75)
    return f"did you mean {dashes}{near[0]}?" if near else f"see unslothrl {command} --help"


def read_value(
    name: str, value: Any, is_flag: bool = True, table: Table = RUN, where: str = ""
) -> Any:
    """`value` in the option's own type and limits; a flag's may be text. UserError with `where`."""
    if name not in table.options:
        if isinstance(value, dict):
            raise UserError(f"{where}[{plain(name, 80)}] is no section of it: take that line out")
        dashes = "--" if is_flag else ""
        raise UserError(where + unknown(name, table.flags, table.command, dashes))
    if value is None and table.is_optional(name):
        return None
    typed = in_own_type(name, value, is_flag, table)
    choices = choices_of(name, table)
    items = typed if isinstance(typed, tuple) else (typed,)
    is_own = name == "learner" and typed is not None and objectives.is_file(typed)
    wrong = [item for item in items if item not in choices and not is_own]
    if typed is None:
        wanted, remedy = KINDS[table.kind(name)], example(name, table)
    elif choices and wrong:
        wanted = "one of " + ", ".join(choices) + (", or a .py file" if name == "learner" else "")
        (remedy,) = difflib.get_close_matches(str(wrong[0]).lower(), choices, 1) or choices[:1]
        if name == "learner" and is_file(f"{wrong[0]}.py"):
            remedy = f"{wrong[0]}.py"
    elif not is_inside(typed, table.options[name].metadata):
        wanted, remedy = limits_text(name, table), example(name, table)
    else:
        return typed
    fix = f"--{table.flag(name)} {remedy}" if is_flag else f"{name} = {toml_value(remedy)}"
    got = shown(value if typed is None else typed)
    raise UserError(f"{where}{name} must be {wanted}, got {got}: set {fix}")


def toml_value(value: Any) -> str:
    """An option's value as JSON, which is TOML but for DEL in a string."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def choices_of(name: str, table: Table = RUN) -> tuple[str, ...]:
    """What an option may be, where that is a list; `--learner` may be a file besides."""
    if name == "learner":
        return objectives.names()
    return table.options[name].metadata.get("choices", ())


def in_own_type(name: str, value: Any, is_flag: bool, table: Table = RUN) -> Any:
    """`value` in the option's own type, or None where it is of another."""
    wanted = table.kind(name)
    if is_flag and isinstance(value, str) and wanted in (int, float):
        try:
            return wanted(value)
        except ValueError:
            return None
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1023 else math.inf
    if wanted is tuple and isinstance(value, list | tuple | str):
        items = (value,) if isinstance(value, str) else tuple(value)
        has_commas = is_flag and table.options[name].metadata.get("commas")
        if has_commas and all(isinstance(item, str) for item in items):
            parts = (part.strip() for item in items for part in item.split(","))
            items = tuple(filter(None, parts)) or items
        return items if all(isinstance(item, str) and item for item in items) else None
    if wanted is str and value == "":
        return value if name == "system_prompt" else None
    return value if type(value) is wanted else None


def is_inside(value: Any, limits: Mapping[str, Any]) -> bool:
    """Whether a number is finite, and inside the limits; True for all else."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return all(holds(value, limits[name]) for name, holds in LIMITS.items() if name in limits)


def limits_text(name: str, table: Table = RUN) -> str:
    """The limits of a number in words, e.g. "over 0 and at most 1"; "" where there are none."""
    limits = table.options[name].metadata
    given = {name.replace("_", " "): limits[name] for name in LIMITS if name in limits}
    return " and ".join(
        f"{words} {limit:g}" if isinstance(limit, float) else f"{words} {limit}"
        for words, limit in given.items()
    )


def example(name: str, table: Table) -> Any:
    """A value that would do: the default, else the learners' or the least."""
    limits, default = table.options[name].metadata, table.options[name].default
    if default is None:
        default = getattr(Objective, name, None)
    if default is None:
        return "TEXT" if table.kind(name) is str else limits.get("at_least", 1)
    return default

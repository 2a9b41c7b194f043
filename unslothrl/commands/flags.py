"""Flags of the commands, made from the table of options, and the help: the everyday options in a
line each, or all of them in full, under the names of their groups."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from unslothrl.config.names import off
from unslothrl.config.options import OPTIONS
from unslothrl.config.toml_files import RECIPES
from unslothrl.config.values import RUN, Table, choices_of, limits_text, read_value
from unslothrl.embedded import EMBEDDED

EVERYDAY = (  # in the order in which they are shown
    "model", "dataset", "reward", "learner", "max_steps", "episodes", "batch_size",
    "num_candidates", "max_prompt_tokens", "max_new_tokens", "temperature", "lr", "max_lora_rank",
    "adapter", "eval_dataset", "eval_every", "save_every", "number_of_actors", "recipe",
    "run_name", "resume",
)  # fmt: skip
MANY = 15  # options of a command, of which its help then shows only these
ALL = "help_all"

OWN_DEFAULT = re.compile(r"[;:]? *default: .*$")  # of a help text
METAVARS = {int: "INTEGER", float: "NUMBER", str: "TEXT", bool: "", tuple: "TEXT"}
KNOWN = {  # what is completed besides choices
    "recipe": tuple(sorted(RECIPES)),
    "model": (EMBEDDED,),
    "dataset": (EMBEDDED,),
}
COMMANDS = {  # in the order in which they are needed
    "Before a run": ("doctor", "recipes", "plan", "data", "score"),
    "Train": ("train", "sft", "dpo", "rm"),
    "Use what was trained": ("chat", "ask", "eval", "export"),
    "Look into runs": ("report", "bundle"),
}
EXAMPLES = """\
grpo --dataset problems.jsonl --reward boxed
train --recipe tiny-cpu --max_steps 30
train --resume auto
sft --dataset embedded --max_steps 50
sft --recipe sft-cpu
sft --recipe sft-cpu --lr 1e-4
dpo --dataset embedded --max_steps 50
dpo --recipe dpo-cpu --beta 0.2
dpo --recipe dpo-cpu --lr 1e-5
rm --dataset embedded --max_steps 50
rm --recipe rm-cpu
rm --recipe rm-cpu --lr 1e-4
doctor
doctor --no-self-test
doctor --json
recipes
recipes --gpu 12
recipes --gpu 4090,4090
plan --gpu 24
plan --model Qwen/Qwen3-4B --gpu 3060
plan sft --recipe sft-8 --gpu 8
data problems.jsonl
data problems.jsonl --model embedded --reward boxed
data sft embedded
score made.jsonl --reward boxed
score made.jsonl --reward mine.py:reward
score made.jsonl --reward boxed --reward format=0.5
chat
chat runs/<run>
chat --no-base --temperature 0 < questions.txt
ask "What is 928 - 467?"
ask runs/<run> "What is 928 - 467?"
ask --base --temperature 0 "What is 928 - 467?"
eval
eval runs/<run> --suite gsm8k,math500
eval runs/<run>/adapters/v000030 --dataset problems.jsonl
export --output my-model
export runs/<run> --to adapter --output my-adapter
export --to gguf --gguf-type q8_0 --output my-gguf
report
report runs
report runs/<run> runs/<another> --output both.html
bundle
bundle runs/<run>
bundle runs/<run> --output problem.tar.gz
"""  # three of each command; an objective's name trains with it


class Program(typer.core.TyperGroup):
    """The commands under the names of their groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group, names in COMMANDS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(99)) for name in names]
                )


class GroupedCommand(typer.core.TyperCommand):
    """A command whose options are listed under their groups' names, with examples."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        of_table: dict[str, Any] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if group := getattr(parameter, "rich_help_panel", None):
                of_table[parameter.name] = parameter
            if record is not None and (group is None or ctx.meta.get(ALL)):
                groups.setdefault(group or "Options", []).append(record)
        if of_table and not ctx.meta.get(ALL):
            shown = EVERYDAY if len(of_table) > MANY else of_table
            groups["Everyday options"] = [
                (of_table[name].opts[0], in_brief(of_table[name].help))
                for name in shown
                if name in of_table
            ]
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        names = ("train", "grpo") if self.name == "train" else (self.name,)
        with formatter.section("Examples"):
            for example in EXAMPLES.splitlines():
                if example.split()[0] in names:
                    formatter.write(f"  unslothrl {example}\n")


def in_brief(text: str) -> str:
    """The first clause of an option's help, with its default."""
    default = re.search(r"\(?(?:.*, )?(default [^,)]+)\)$", text)
    said = re.split(r"[:;,(]", text.removeprefix("recipe: "), maxsplit=1)[0].strip()
    return f"{said} ({default[1]})" if default else said


def with_options(
    function: Any,
    names: Sequence[str] = tuple(OPTIONS),
    table: Table = RUN,
    defaults: Mapping[str, str] | None = None,
) -> Any:
    """What Typer reads the parameters of a command from: those of `function` that it declares, and
    one for each option. `function` is called with its own, `command` if it asks for the table's,
    and the options that are given, each in its own type. `defaults`: in words, what the command
    does without an option, where that is not the table's default."""
    *own, _ = inspect.signature(function).parameters.values()
    command = {"command": table.command} if own and own[0].name == "command" else {}
    own = own[len(command) :]

    def called(**found: Any) -> Any:
        mine = {each.name: found[each.name] for each in own}
        flags = {
            name: read_value(name, found[name], table=table)
            for name in names
            if found[name] not in (None, [])
        }
        return function(**command, **mine, **flags)

    info = typer.Option(
        None,
        "--help-all",
        is_eager=True,
        callback=print_all,
        help=f"Describe all {len(names)} options by group.",
        show_default=False,
    )
    options = [flag(name, table, (defaults or {}).get(name)) for name in names]
    parameters = [*own, *options, keyword(ALL, info, bool)]
    called.__name__, called.__doc__ = function.__name__, function.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def keyword(name: str, info: Any, kind: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind | None
    )


def print_all(ctx: typer.Context, is_wanted: bool | None) -> None:
    """The help with every option, at once."""
    if is_wanted:
        ctx.meta[ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def flag(name: str, table: Table = RUN, default: str | None = None) -> inspect.Parameter:
    """The command-line parameter of an option; its value arrives as text and is read by config."""
    kind, choices = table.kind(name), choices_of(name, table)
    spelled = [f"--{each}" for each in table.spellings(name)]
    if kind is bool:
        spelled[0] += f"/--{off(spelled[0].lstrip('-'))}"
    known = choices or KNOWN.get(name, ())

    def complete(incomplete: str) -> list[str]:
        return [value for value in known if value.startswith(incomplete)]

    info = typer.Option(
        None,
        *spelled,
        help=help_text(name, table, default),
        metavar="NAME" if choices else METAVARS[kind],
        show_default=False,
        rich_help_panel=table.options[name].metadata["group"],
        autocompletion=complete if known else None,  # None: files
    )
    types: dict[Any, Any] = {tuple: list[str], bool: bool}
    return keyword(name, info, types.get(kind, str))


def help_text(name: str, table: Table = RUN, default: str | None = None) -> str:
    """An option's help with its choices, unit, limits and default, or `default` in its place."""
    entry, choices = table.options[name], choices_of(name, table)
    said = entry.metadata["help"]
    if default is not None:
        said = OWN_DEFAULT.sub("", said)
    elif entry.default not in (None, ()):
        default = f"default {entry.default}"
    known_names = f"one of {', '.join(choices)}" if choices else None
    limits = limits_text(name, table) if "at_most" in entry.metadata else ""
    facts = [known_names, entry.metadata.get("unit"), limits, default]
    known = ", ".join(fact for fact in facts if fact)
    return f"{said} ({known})" if known else said

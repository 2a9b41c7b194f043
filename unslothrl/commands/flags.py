"""Flags of the commands, made from the table of options, and the help: the everyday options in a
line each, or all of them in full, under the names of their groups."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from unslothrl import __version__
from unslothrl.config.toml_files import RECIPES
from unslothrl.config.values import RUN, Table, choices_of, limits_text, off, read_value
from unslothrl.embedded import BASES
from unslothrl.files import documented

EVERYDAY = (  # in the order in which they are shown
    "model", "dataset", "reward", "learner", "max_steps", "episodes", "batch_size",
    "num_candidates", "max_prompt_tokens", "max_new_tokens", "temperature", "lr", "max_lora_rank",
    "adapter", "eval_dataset", "eval_every", "save_every", "number_of_actors", "recipe",
    "run_name", "resume",
)  # fmt: skip
MANY = 15  # options of a command, of which its help then shows only these
ALL = "help_all"
EXAMPLES = "## Examples of each command"  # of the page docs/using.md
EXAMPLE = re.compile(r"^ {4}unslothrl (\S+).*$", re.MULTILINE)

OWN_DEFAULT = re.compile(r"[;:]? *default: .*$")  # of a help text
METAVARS = {int: "INTEGER", float: "NUMBER", str: "TEXT", bool: None, tuple: "TEXT"}
KNOWN = {  # what is completed besides choices
    "recipe": tuple(sorted(RECIPES)),
    "model": tuple(BASES),
    "dataset": tuple(BASES),
}
COMMANDS = {  # in the order in which they are needed
    "Before a run": ("demo", "setup", "doctor", "check-model", "recipes", "plan", "data", "score"),
    "Train": ("train", "sft", "dpo", "rm"),
    "Use what was trained": ("chat", "ask", "eval", "export"),
    "Look into runs": ("report", "ui"),
}
PROGRAM = "Reinforcement learning on your own GPU that tells you whether it worked."
EPILOG = (
    "`unslothrl grpo` is `unslothrl train --learner grpo`, so with each objective. Names of "
    "options may have hyphens. `unslothrl COMMAND --help` has examples."
)


class Program(click.Group):
    """The commands under the names of their groups."""

    def __init__(self, commands: Mapping[str, click.Command]):
        super().__init__(
            "unslothrl",
            commands=dict(commands),
            help=PROGRAM,
            epilog=EPILOG,
            context_settings={
                "token_normalize_func": lambda name: name.replace("-", "_"),
                "help_option_names": ["--help", "-h"],
                "max_content_width": 120,
            },
        )
        click.version_option(__version__, message="%(prog)s %(version)s")(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in COMMANDS.values() for name in names]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name.replace("_", "-"))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, names in COMMANDS.items():
            with formatter.section(group):
                firsts = [str(self.commands[name].help).partition("\n")[0] for name in names]
                formatter.write_dl(list(zip(names, firsts, strict=True)))


class GroupedCommand(click.Command):
    """A command whose options are listed under their groups' names, with examples."""

    groups: Mapping[str, str]  # of the options of a table

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        brief: dict[str, tuple[str, str]] = {}  # of those of the table
        for parameter in self.get_params(ctx):
            record, group = parameter.get_help_record(ctx), self.groups.get(str(parameter.name))
            if record and group and not ctx.meta.get(ALL):
                brief[str(parameter.name)] = (parameter.opts[0], in_brief(record[1]))
            elif record:
                groups.setdefault(group or "Options", []).append(record)
        if brief:
            shown = EVERYDAY if len(brief) > MANY else brief
            groups["Everyday options"] = [brief[name] for name in shown if name in brief]
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """They are among the options."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = ("train", "grpo") if self.name == "train" else (self.name,)
        with formatter.section("Examples"):
            for example in EXAMPLE.finditer(documented("using.md").partition(EXAMPLES)[2]):
                if example[1] in names:
                    formatter.write(f"  {example[0].strip()}\n")


def in_brief(text: str) -> str:
    """The first clause of an option's help, with its default."""
    default = re.search(r"\(?(?:.*, )?(default [^,)]+)\)$", text)
    said = re.split(r"[:;,(]", text.removeprefix("recipe: "), maxsplit=1)[0].strip()
    return f"{said} ({default[1]})" if default else said


def command(
    name: str,
    function: Callable[..., Any],
    own: Sequence[click.Parameter] = (),
    options: Sequence[str] = (),
    table: Table = RUN,
    defaults: Mapping[str, str] = {},
    **more: Any,
) -> click.Command:
    """A command whose `function` gets its `own` parameters, and those of the table's `options` that
    are given, each in its own type. `defaults`: in words, what it does without an option, where
    that is not the table's default."""

    def called(**found: Any) -> Any:
        for each in options:
            if (value := found.pop(each)) not in (None, ()):
                found[each] = read_value(each, value, table=table)
        return function(**found)

    whole = click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_all,
        help=f"Describe all {len(options)} options by group.",
    )
    flags = [flag(each, table, defaults.get(each)) for each in options]
    parameters = [*own, *flags, *([whole] if flags else [])]
    made = GroupedCommand(name, callback=called, params=parameters, **more)
    made.groups = {each: table.options[each].metadata["group"] for each in options}
    return made


def print_all(ctx: click.Context, option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        ctx.meta[ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def flag(name: str, table: Table = RUN, default: str | None = None) -> click.Option:
    """The command-line parameter of an option; its value arrives as text and is read by config."""
    kind, choices = table.kind(name), choices_of(name, table)
    spelled = [f"--{each}" for each in table.spellings(name)]
    if kind is bool:
        spelled[0] += f"/--{off(spelled[0].lstrip('-'))}"
    known = choices or KNOWN.get(name, ())

    def complete(ctx: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
        return [value for value in known if value.startswith(incomplete)]

    return click.Option(
        [*spelled, name],
        default=() if kind is tuple else None,
        multiple=kind is tuple,
        help=help_text(name, table, default),
        metavar="NAME" if choices else METAVARS[kind],
        shell_complete=complete if known else None,  # None: files
    )


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

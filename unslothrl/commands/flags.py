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

EVERYDAY = (  # in the order in which they are shown
    "model", "dataset", "reward", "learner", "max_steps", "episodes", "batch_size",
    "num_candidates", "max_prompt_tokens", "max_new_tokens", "temperature", "lr", "max_lora_rank",
    "adapter", "eval_dataset", "eval_every", "save_every", "number_of_actors", "recipe",
    "run_name", "resume",
)  # fmt: skip
MANY = 15  # options of a command, of which its help then shows only these
ALL = "help_all"

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
EXAMPLES = """\
grpo --dataset problems.jsonl --reward mine.py:reward
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
demo
demo --seed 1
demo --output_dir /tmp/runs
setup
setup --set cpu
setup --check
doctor
doctor --no-self-test
doctor --json
check-model embedded
check-model embedded --engine transformers
check-model embedded --json
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
ui
ui --port 8642
ui --output_dir my-runs
"""  # three of each command; an objective's name trains with it


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
            for example in EXAMPLES.splitlines():
                if example.split()[0] in names:
                    formatter.write(f"  unslothrl {example}\n")


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

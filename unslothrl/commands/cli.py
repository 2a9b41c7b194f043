"""The command line: `unslothrl`, `python -m unslothrl` and `python train_distributed.py`.

Flags come from `config.options.Config`. Whatever is wrong with the input is one line on stderr and
exit code 2, before anything heavy is imported.
"""

import difflib
import functools
import inspect
import io
import math
import sys
from collections.abc import Sequence
from typing import Any

import typer

from unslothrl import __version__, resolve
from unslothrl.config import options, values
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import RunError, UserError
from unslothrl.untrusted import plain

USAGE = 2  # exit code
FAILED = 1  # the exit code of a run that had to stop
UsageError: Any = typer.BadParameter.__bases__[0]  # click's, from wherever this typer takes click
METAVARS = {int: "INTEGER", float: "NUMBER", str: "TEXT", bool: "", tuple: "TEXT"}


class GroupedCommand(typer.core.TyperCommand):
    """Options under their groups' names. No flag is cut, however narrow the terminal."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                group = getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={
        "token_normalize_func": lambda name: name.replace("-", "_"),
        "help_option_names": ["--help", "-h"],
        "max_content_width": 120,
    },
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code. Flags without a command mean `train`; nothing at
    all prints the help."""
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of an ASCII or half-read terminal
    for text in arguments:
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            return refuse(f"{text!a:.60} is not in UTF-8: see unslothrl --help")
    command = parser()
    first = arguments[0]
    if not first.startswith("-") and first not in command.commands:
        return refuse(unknown_command(first, tuple(command.commands)))
    if first.startswith("-") and first not in ("--version", "--help", "-h"):
        arguments.insert(0, "train")
    try:
        return command.main(arguments, prog_name="unslothrl", standalone_mode=False) or 0
    except UsageError as error:
        return refuse(usage_message(error))
    except UserError as error:
        return refuse(str(error))
    except RunError as error:
        return refuse(str(error), FAILED)


def unknown_command(name: str, commands: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.lower(), commands, 1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(commands)}"
    return f"{plain(name)} is not a command: {hint}"


@functools.cache
def parser() -> Any:
    """The commands and their flags."""
    return typer.main.get_command(app)


def refuse(message: str, code: int = USAGE) -> int:
    print("unslothrl: " + " ".join(message.split()), file=sys.stderr)
    return code


def usage_message(error: Any) -> str:
    """What the parser found, in our words where we have better ones."""
    flag = getattr(error, "option_name", None)
    name = flag.lstrip("-").replace("-", "_") if flag else None
    context = getattr(error, "ctx", None)
    command = context.info_name if context is not None else "train"
    if name and hasattr(error, "possibilities"):
        return unknown_option(name, command)
    if name in options.OPTIONS and options.kind(name) is not bool:
        return f"--{name} needs a value: set e.g. --{name} {values.example(name)}"
    return f"{error.format_message().rstrip('.')}: see unslothrl {command} --help"


def unknown_option(name: str, command: str) -> str:
    """The message for a flag that a command does not have."""
    found = parser().commands.get(command)
    own = [] if found is None else [one.name for one in found.params]
    if found is None or set(options.OPTIONS) <= set(own):
        return values.unknown_option(name)
    near = difflib.get_close_matches(name, own, 1)
    hint = f"did you mean --{near[0]}?" if near else f"see unslothrl {command} --help"
    return f"--{name} is not an option of {command}: {hint}"


@app.callback(
    invoke_without_command=True,
    epilog="Flags without a command mean `train`: unslothrl --learner grpo. `unslothrl COMMAND "
    "--help` lists a command's options.",
)
def program(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """Reinforcement learning for language models that starts on one consumer GPU."""
    if version:
        print(f"unslothrl {__version__}")


TRAIN_HELP = (
    "Train a LoRA by reinforcement learning. `train` may be left out: it is what flags mean.\n\n"
    "Flags go over the recipe, the recipe over the defaults. What you set stays; a default that "
    "does not fit the machine is changed, and the change is printed. Without a GPU or without "
    "network the package's own tiny base and arithmetic problems are used, unless you name others."
)


def train(**flags: str | bool | list[str] | None) -> int:
    """Resolves the flags and runs the trainer; -> its exit code."""
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    resolved = resolve.resolve(given)
    from unslothrl.run import run

    return run(resolved.config, resolved.notes)


def flag(name: str) -> inspect.Parameter:
    """The command-line parameter of an option; its value arrives as text and is read by config."""
    entry, is_bool = options.OPTIONS[name], options.kind(name) is bool
    choices = values.choices_of(name)
    info = typer.Option(
        None,
        f"--{name}/--no_{name}" if is_bool else f"--{name}",
        help=help_text(name),
        metavar="NAME" if choices else METAVARS[options.kind(name)],
        show_default=False,
        rich_help_panel=entry.metadata["group"],
    )
    is_list = options.kind(name) is tuple
    annotation = list[str] | None if is_list else (bool if is_bool else str) | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=annotation
    )


def help_text(name: str) -> str:
    """The option's help, its unit, limits and default."""
    entry = options.OPTIONS[name]
    default = None if entry.default in (None, ()) else f"default {entry.default}"
    choices = values.choices_of(name)
    known_names = f"one of {', '.join(choices)}" if choices else None
    facts = [known_names, entry.metadata.get("unit"), values.limits_text(name), default]
    known = ", ".join(fact for fact in facts if fact)
    return f"{entry.metadata['help']} ({known})" if known else entry.metadata["help"]


def command_of(function: Any, names: Sequence[str] = tuple(options.OPTIONS)) -> Any:
    """`function` with one typed parameter for every option, which typer reads its flags from; those
    that it has itself come first."""
    own = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.kind != one.VAR_KEYWORD
    ]
    parameters = [*own, *(flag(name) for name in names)]
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    return function


def finite(value: float | None) -> float | None:
    """A number's limits let what is not a number through."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value


def score(
    source: str = typer.Argument(help="Rows as for training, with a column `completion` more."),
    reward: list[str] = typer.Option(help="NAME, NAME=WEIGHT or file.py:function, repeated."),
    reward_timeout: float = typer.Option(
        5.0, min=0.01, max=3600, callback=finite, help="Seconds that one may take."
    ),
    prompt_column: str = typer.Option(None, help="Column of the problem; not set: recognised."),
    answer_column: str = typer.Option(None, help="Column of the gold answer."),
    allow_unsandboxed_code: bool = typer.Option(
        False, "--allow_unsandboxed_code", help="Run code with limits only, if it must be."
    ),
) -> int:
    """Score a file of completions by a reward, without a model."""
    from unslothrl.commands.score import score as run
    from unslothrl.data.formats import Columns

    run(
        source,
        reward,
        reward_timeout,
        columns=Columns(prompt_column, answer_column),
        allow_unsandboxed=allow_unsandboxed_code,
    )
    return 0


DATA_OPTIONS = (
    "model",
    "recipe",
    "reward",
    "system_prompt",
    "max_prompt_tokens",
    "prompt_column",
    "answer_column",
)


def data(
    source: str = typer.Argument(help="Data set: hub id, file or folder, NAME@SPLIT[:1000]."),
    json: bool = typer.Option(False, "--json", help="One JSON object instead of text."),
    **flags: str | list[str] | None,
) -> int:
    """Show what a data set was taken for: columns, prompts, lengths, rows that are not used."""
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    if source == EMBEDDED and "recipe" not in given:
        given.setdefault("model", EMBEDDED)  # nothing of the hub's is needed
    resolved = resolve.resolve({**given, "dataset": source})
    from unslothrl.commands.data import describe

    describe(resolved.config, json)
    return 0


def ask(
    question: str = typer.Argument(help="What to ask."),
    adapter: str = typer.Option(help="Adapter folder, e.g. runs/<run>/adapters/v000020."),
    max_new_tokens: int = typer.Option(
        None, min=1, max=2**20, help="Longest completion (tokens); not set: as in its run."
    ),
    temperature: float = typer.Option(
        None,
        min=0,
        max=5,
        callback=finite,
        help="Sampling temperature, 0: the likeliest token; not set: as its run was evaluated.",
    ),
    model: str = typer.Option(
        None, help="Its base: hub id, folder, or embedded; not set: its own."
    ),
) -> int:
    """Ask a trained adapter a question and print its completion."""
    from unslothrl.commands.ask import ask as answer

    print(answer(adapter, question, max_new_tokens, temperature, model))
    return 0


def plan(
    card: float = typer.Option(
        None, min=1, max=4096, callback=finite, help="As if there were one card of so many GB."
    ),
    json: bool = typer.Option(False, "--json", help="One JSON object instead of text."),
    **flags: str | bool | list[str] | None,
) -> int:
    """Predict a run's memory by process and part, and print the flags that fit a card best.

    Options are those of a run. Without any, a table of models for this machine's card.
    """
    from unslothrl.commands.plan import forecast

    given = {name: value for name, value in flags.items() if value is not None and value != []}
    forecast(given, card, json)
    return 0


app.command(cls=GroupedCommand, help=TRAIN_HELP)(command_of(train))
app.command(cls=GroupedCommand)(command_of(plan))
app.command(cls=GroupedCommand)(command_of(data, DATA_OPTIONS))
app.command(cls=GroupedCommand)(score)
app.command(cls=GroupedCommand)(ask)

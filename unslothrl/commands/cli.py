"""The command line: `unslothrl`, `python -m unslothrl` and `python train_distributed.py`.

Flags come from the table of options. Whatever is wrong with the input is one line on stderr and
exit code 2, before anything heavy is imported: a command's file is imported when it is called.
"""

import errno
import functools
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from unslothrl import __version__
from unslothrl.commands import signatures as our
from unslothrl.commands.flags import GroupedCommand, Program, with_options
from unslothrl.config import names
from unslothrl.config.offline_options import TABLES
from unslothrl.config.option import TASK
from unslothrl.config.values import RUN, choices_of
from unslothrl.errors import RunError, UserError
from unslothrl.text import for_terminal, printable, redacted

USAGE = 2  # exit code
FAILED = 1  # the exit code of a run that had to stop
INTERRUPTED = 130  # of a command that Ctrl-C or SIGTERM ended
UsageError: Any = typer.BadParameter.__bases__[0]  # click's, from wherever this typer takes click

OF_THE_PROGRAM = {"version", "help", "h", "install_completion", "show_completion"}  # its flags
WITH_STAGES = ("plan", "data")  # commands that may take a stage's name as a second word

EXTRA = (
    "options are written --NAME VALUE with two hyphens; put a value with spaces between quotes, "
    "repeat an option for each of several values, and give several files as their folder"
)
EVAL_OPTIONS = (
    "model", "recipe", "reward", "reward_timeout", "system_prompt", "prompt_column",
    "answer_column", "max_prompt_tokens", "max_new_tokens", "eval_problems", "eval_temperature",
    "eval_top_p", "seed", "engine", "cluster", "number_of_actors", "ray_address", "kv_cache_mb",
    "max_num_seqs", "allow_unsandboxed_code",
)  # fmt: skip
SCORE_OPTIONS = ("reward_timeout", "prompt_column", "answer_column", "allow_unsandboxed_code")
DATA_OPTIONS = ("adapter", "recipe", "seed", "assistant_only_loss")  # beside the data's own

app = typer.Typer(
    cls=Program,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "token_normalize_func": lambda name: name.replace("-", "_"),
        "help_option_names": ["--help", "-h"],
        "max_content_width": 120,
    },
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of a terminal that knows only ASCII
    code = 0
    try:
        code = answer(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except Exception as error:
        if isinstance(error, OSError):  # `| head` has seen enough, a full disk, or another file
            if error.errno in (errno.EPIPE, errno.ENOSPC):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
            if error.errno == errno.EPIPE:
                return code or FAILED
            file = "" if error.filename is None else f"{error.filename}: "
            return refuse(f"{file}{error.strerror or error}", code or FAILED)
        from unslothrl.cluster.causes import summary_of

        text = redacted("".join(traceback.format_exception(error)), guess=True)
        print(printable(text, kept="\n"), file=sys.stderr, end="")
        said = f"internal error, {summary_of(error)}: please report it with the lines above"
        return refuse(said, FAILED)


def answer(arguments: list[str]) -> int:
    """Runs a command. Flags alone mean `train`, an objective's name that with it. -> exit code"""
    arguments = arguments or ["--help"]
    flag = arguments[0].lstrip("-").replace("-", "_")
    if arguments[0].startswith("-") and flag not in OF_THE_PROGRAM:
        arguments = ["train", *arguments]
    elif flag in choices_of("learner"):
        arguments = ["train", "--learner", flag, *arguments[1:]]
    elif arguments[0] in WITH_STAGES and arguments[1:2] and arguments[1] in TABLES:
        arguments = [" ".join(arguments[:2]), *arguments[2:]]
    if arguments[0] == "cluster":  # of earlier versions
        return refuse("cluster is no longer a command: use `ray status`, or Ray's dashboard")
    if arguments.count("--dataset") > 1 and arguments[0] != "eval":  # the last would count alone
        return refuse("--dataset is given twice: put the files into a folder, and set it once")
    try:
        return parser().main(arguments, prog_name="unslothrl", standalone_mode=False) or 0
    except (UsageError, UserError, RunError, KeyboardInterrupt, typer.Abort) as error:
        if isinstance(error, KeyboardInterrupt | typer.Abort):
            return INTERRUPTED
        said = usage_message(error) if isinstance(error, UsageError) else str(error)
        return refuse(said, FAILED if isinstance(error, RunError) else USAGE)


@functools.cache
def parser() -> Any:
    """The commands and their flags."""
    return typer.main.get_command(app)


def usage_message(error: Any) -> str:
    """What Click refused of the command line, with our own hint where Click has none."""
    said = error.format_message().rstrip(".")
    if "does not take a value" in said:
        off = names.off(error.option_name.lstrip("-"))
        return f"{said}: write it alone, or --{off} to turn it off"
    ctx = getattr(error, "ctx", None)
    if ctx is None:
        return said
    if hasattr(error, "possibilities"):
        flags = [
            flag.lstrip("-")
            for each in ctx.command.params
            for flag in (*each.opts, *each.secondary_opts)
        ]
        command = ctx.command_path.partition(" ")[2]
        return names.unknown(error.option_name.lstrip("-"), flags, command)
    return f"{said}: {EXTRA}" if "unexpected extra argument" in said else f"{said}: see --help"


def refuse(message: str, code: int = USAGE) -> int:
    """Prints one line. What it quotes may come from a file, and does not steer the terminal."""
    print("unslothrl: " + for_terminal(" ".join(message.split())), file=sys.stderr)
    return code


@app.callback(
    invoke_without_command=True,
    epilog="`unslothrl grpo` is `unslothrl train --learner grpo`, so with each objective. Names "
    "of options may have hyphens. `unslothrl COMMAND --help` has examples.",
)
def program(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """Reinforcement learning on your own GPU that tells you whether it worked."""
    if version:
        print(f"unslothrl {__version__}")


def register() -> None:
    """Adds the commands, in the order in which they are listed; "plan sft" is one of two words."""
    add = functools.partial(app.command, cls=GroupedCommand)
    add()(with_options(our.train))
    as_in_run = dict.fromkeys(EVAL_OPTIONS, "default: as in its run")
    add("eval")(with_options(our.evaluate, EVAL_OPTIONS, defaults=as_in_run))
    recommended = {"learner": "default grpo"}
    for table in (RUN, *TABLES.values()):
        options, of = tuple(table.options), "" if table is RUN else f" {table.command}"
        if of:
            add(table.command, help=our.STAGES[table.command])(
                with_options(our.stage, options, table)
            )
        of_data = [
            name
            for name, entry in table.options.items()
            if name in DATA_OPTIONS or (entry.metadata["group"] == TASK and name != "dataset")
        ]
        planned = with_options(our.plan, options, table, {} if of else recommended)
        add(f"plan{of}", hidden=bool(of))(planned)
        add(f"data{of}", hidden=bool(of))(with_options(our.data, of_data, table))
    add()(with_options(our.score, SCORE_OPTIONS))
    own = {"model": "default: the adapter's own", "max_new_tokens": "default: as in its run"}
    for command, options in (
        (our.ask, ("model", "max_new_tokens")),
        (our.chat, ("model", "max_new_tokens")),
        (our.export, ("model",)),
    ):
        add()(with_options(command, options, defaults=own))
    for function in (our.recipes, our.report, our.doctor, our.bundle):
        add()(function)


register()

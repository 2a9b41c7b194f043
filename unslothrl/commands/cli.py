"""The command line: `unslothrl`, `python -m unslothrl` and `python train_distributed.py`.

Flags come from the table of options. Whatever is wrong with the input is one line on stderr and
exit code 2, before anything heavy is imported: a command's file is imported when it is called.
"""

import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from unslothrl.commands.flags import Program
from unslothrl.commands.signatures import ALL_COMMANDS
from unslothrl.config.values import choices_of, off, unknown
from unslothrl.errors import RunError, UserError
from unslothrl.text import for_terminal, printable, redacted

USAGE = 2  # exit code
FAILED = 1  # the exit code of a run that had to stop
INTERRUPTED = 130  # of a command that Ctrl-C or SIGTERM ended
OF_THE_PROGRAM = {"version", "help", "h"}  # its flags

EXTRA = (
    "options are written --NAME VALUE with two hyphens; put a value with spaces between quotes, "
    "repeat an option for each of several values, and give several files as their folder"
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
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and not missing.startswith("unslothrl"):
            return refuse(f"{missing} is not installed: run `unslothrl setup`", FAILED)
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
    elif (two := " ".join(arguments[:2])) in ALL_COMMANDS:  # "plan sft"
        arguments = [two, *arguments[2:]]
    given = [each.partition("=")[0] for each in arguments]
    if given.count("--dataset") > 1 and arguments[0] != "eval":  # the last would count alone
        return refuse("--dataset is given twice: put the files into a folder, and set it once")
    try:
        program = Program(ALL_COMMANDS)
        return program.main(arguments, prog_name="unslothrl", standalone_mode=False) or 0
    except (click.UsageError, UserError, RunError, KeyboardInterrupt, click.Abort) as error:
        if isinstance(error, KeyboardInterrupt | click.Abort):
            return INTERRUPTED
        said = usage_message(error) if isinstance(error, click.UsageError) else str(error)
        return refuse(said, FAILED if isinstance(error, RunError) else USAGE)


def usage_message(error: Any) -> str:
    """What Click refused of the command line, with our own hint where Click has none."""
    said = str(error.format_message().rstrip("."))
    if isinstance(error, click.NoSuchCommand):
        return said
    if "does not take a value" in said:
        opposite = off(error.option_name.lstrip("-"))
        return f"{said}: write it alone, or --{opposite} to turn it off"
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        command = error.ctx.command
        flags = [flag for each in command.params for flag in (*each.opts, *each.secondary_opts)]
        known = [flag.lstrip("-") for flag in flags]
        return unknown(error.option_name.lstrip("-"), known, str(command.name))
    return f"{said}: {EXTRA if 'unexpected extra argument' in said else 'see --help'}"


def refuse(message: str, code: int = USAGE) -> int:
    """Prints one line. What it quotes may come from a file, and does not steer the terminal."""
    print("unslothrl: " + for_terminal(" ".join(message.split())), file=sys.stderr)
    return code

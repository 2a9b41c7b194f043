"""The help of the program and of its commands: the everyday options first, all of them on request,
and readable at the width of a phone."""

import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from unslothrl.commands.flags import without_limits
from unslothrl.config.options import OPTIONS

ALL = "--help_all"
EVERYDAY = (  # in the order in which they are shown
    "model",
    "dataset",
    "reward",
    "learner",
    "max_steps",
    "episodes",
    "batch_size",
    "num_candidates",
    "max_prompt_tokens",
    "max_new_tokens",
    "temperature",
    "lr",
    "max_lora_rank",
    "adapter",
    "eval_dataset",
    "eval_every",
    "save_every",
    "number_of_actors",
    "recipe",
    "run_name",
    "resume",
)
MANY = 40  # options of a command, of which its help then shows only these
WIDEST, NARROW = 120, 60  # columns; on fewer than NARROW a help text stands below its option


class GroupedCommand(typer.core.TyperCommand):
    """Options under their groups' names. No flag is cut, however narrow the terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.width = columns()
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shows_all = isinstance(ctx.obj, dict) and bool(ctx.obj.get(ALL))
        for name, records in self.sections(ctx, shows_all):
            with formatter.section(name):
                write_table(formatter, records)

    def sections(self, ctx: Any, shows_all: bool) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """-> (heading, [(flag, help)]) for each section."""
        parameters = self.get_params(ctx)
        if shows_all or len(parameters) < MANY:
            yield from grouped(ctx, parameters)
            return
        everyday = {each.name: each for each in parameters if each.name in EVERYDAY}
        own = [each for each in parameters if each.name not in OPTIONS and each.name != "help"]
        yield from grouped(ctx, own)
        shown = [
            (name, everyday[name].get_help_record(ctx)) for name in EVERYDAY if name in everyday
        ]
        yield (
            "Everyday options",
            [(record[0], without_limits(record[1], name)) for name, record in shown if record],
        )
        rest = [each for each in parameters if each.name == "help"]
        flags = sum(each.name != "help" for each in parameters)
        more = (ALL, f"List all {flags} options by group, with their limits.")
        yield "More", [more, *(record for each in rest if (record := each.get_help_record(ctx)))]


class Program(typer.core.TyperGroup):
    """The program itself: its commands and few options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.width = columns()
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        commands = self.commands.items()
        with formatter.section("Commands"):
            write_table(
                formatter,
                [(name, first_sentence(each)) for name, each in commands if not each.hidden],
            )
        for name, records in grouped(ctx, self.get_params(ctx)):
            with formatter.section(name):
                write_table(formatter, records)


def grouped(ctx: Any, parameters: Sequence[Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """-> (group, [(flag, help)]) of parameters, in their order."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        if (record := parameter.get_help_record(ctx)) is not None:
            group = getattr(parameter, "rich_help_panel", None) or "Options"
            groups.setdefault(group, []).append(record)
    yield from groups.items()


def first_sentence(command: Any) -> str:
    """What a command does, for the list of commands."""
    text = " ".join((command.help or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".")


def write_table(formatter: Any, records: Sequence[tuple[str, str]]) -> None:
    """Writes names with their texts, in a narrow terminal below each other."""
    if formatter.width >= NARROW:
        formatter.write_dl(records)
        return
    split = [
        (name.replace(" / ", f" /\n{'':>{formatter.current_indent}}"), text)
        for name, text in records
    ]
    formatter.write_dl(split, col_max=2)


def columns() -> int:
    """Of the terminal, as far as lines may reach; COLUMNS overrides them."""
    return max(20, min(shutil.get_terminal_size().columns, WIDEST) - 1)


def is_all(argument: str) -> bool:
    """Whether an argument asks for the whole help; flags may be written with dashes."""
    return argument.startswith("--") and argument[2:].replace("-", "_") == ALL[2:]

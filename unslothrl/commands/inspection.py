"""`unslothrl plan`, `data` and `recipes`: what a run would do, without one; with a stage's name as
a second word, what `unslothrl sft`, `dpo` or `rm` would do."""

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer

from unslothrl.commands.flags import given, with_options
from unslothrl.config.offline_options import TABLES
from unslothrl.config.option import TASK
from unslothrl.embedded import EMBEDDED

WITH_STAGES = ("plan", "data")  # commands that take a stage's name as a second word
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
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead of text."),
    **flags: str | list[str] | None,
) -> int:
    """Show how a data set is read: columns, prompts, lengths, rows that are not used.

    `data sft`, `data dpo` and `data rm` show it as those commands read it.
    """
    from unslothrl.commands.data import describe
    from unslothrl.config.resolve import resolve

    chosen = given(flags)
    if (stage := of_recipe(chosen)) is not None:
        return data_stage(stage, source, json, **chosen)
    if source == EMBEDDED and "recipe" not in chosen:
        chosen.setdefault("model", EMBEDDED)  # nothing of the hub's is needed
    describe(resolve({**chosen, "dataset": source}).config, json)
    return 0


def plan(
    card: str = typer.Option(
        None, metavar="CARD[,CARD...]", help="Assume these cards, by GB or name: 24, or 4090,12."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead of text."),
    **flags: str | bool | list[str] | None,
) -> int:
    """Predict a run's memory by process and part, and print the flags that fit a card best.

    It takes the options of a run. Without any, it prints a table of models that fit the card.
    `plan sft`, `plan dpo` and `plan rm` take the options of those commands.
    """
    from unslothrl.commands.plan import forecast

    chosen = given(flags)
    if (stage := of_recipe(chosen)) is not None:
        return plan_stage(stage, card, json, **chosen)
    forecast(chosen, card, json)
    return 0


def recipes(
    card: str = typer.Option(
        None, metavar="CARD[,CARD...]", help="Assume these cards, by GB or name: 24, or 4090,12."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead of text."),
) -> int:
    """List the recipes, and which fit this machine."""
    from unslothrl.commands.recipes import show

    show(card, json)
    return 0


def plan_stage(
    stage: str,
    card: str = typer.Option(None, metavar="CARD", help="Assume this card: 12 (GB), or T4."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead of text."),
    **flags: str | bool | list[str] | None,
) -> int:
    """Predict the memory of a stage by part, and print the flags that fit a card best."""
    from unslothrl.commands.plan_stage import forecast

    forecast(stage, given(flags), card, json)
    return 0


def data_stage(
    stage: str,
    source: str = typer.Argument(help="Data set: hub id, file or folder, NAME@SPLIT[:1000]."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead of text."),
    **flags: str | bool | list[str] | None,
) -> int:
    """Show rows as a stage trains on them: what is learnt, lengths, rows that are left out."""
    from unslothrl.commands.data_stage import describe
    from unslothrl.offline.resolve import resolve

    describe(resolve(stage, {**given(flags), "dataset": source}), json)
    return 0


def of_stages() -> Iterator[tuple[str, Any]]:
    """("plan sft", its function) and so on; `joined` makes these names of two words."""
    for command, table in TABLES.items():
        of_data = [
            name
            for name, entry in table.options.items()
            if (entry.metadata["group"] == TASK and name != "dataset")
            or name in ("model", "adapter", "recipe", "seed", "assistant_only_loss")
        ]
        options: dict[str, Sequence[str]] = {"plan": tuple(table.options), "data": of_data}
        for name, function in (("plan", plan_stage), ("data", data_stage)):
            bound: Any = functools.partial(function, command)
            bound.__name__, bound.__doc__ = function.__name__, function.__doc__
            bound.__signature__ = without_stage(function)
            yield f"{name} {command}", with_options(bound, options[name], table)


def without_stage(function: Any) -> inspect.Signature:
    _, *others = inspect.signature(function).parameters.values()
    return inspect.Signature(others)


def joined(arguments: Sequence[str]) -> list[str]:
    """Arguments in which a command and its stage are one: ["plan sft", ...]."""
    if len(arguments) > 1 and arguments[0] in WITH_STAGES and arguments[1] in TABLES:
        return [" ".join(arguments[:2]), *arguments[2:]]
    return list(arguments)


def of_recipe(flags: Mapping[str, Any]) -> str | None:
    """The stage that a recipe is for; None without one, or for one of RL. UserError."""
    if "recipe" not in flags:
        return None
    from unslothrl.config.reading import command_of

    command = command_of(flags["recipe"])
    return command if command in TABLES else None

"""`unslothrl recipes`: the recipes of the package, and which fit this machine."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from unslothrl.commands.plan import with_cards
from unslothrl.commands.plan_stage import report_of
from unslothrl.config.options import Config
from unslothrl.config.reading import RECIPES, command_of
from unslothrl.config.resolve import resolve
from unslothrl.config.values import RUN
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.offline.resolve import resolve as resolve_stage
from unslothrl.planning import shapes
from unslothrl.planning.cards import cards_of
from unslothrl.planning.forecast import forecast_of
from unslothrl.planning.machine import Gpu, Machine
from unslothrl.tracking import calling

FIELDS = ("Hardware", "Task", "Memory", "Time", "Reward", "Result")
FIELD = re.compile(rf"# ({'|'.join(FIELDS)}) +(.+)")
CHANGE = re.compile(r"(\w+) \S+ -> (\S+?)(?::|$)")  # a note on an option
OF_THE_MACHINE = ("learner_gpu_usage", "run_name")  # options that a recipe leaves open
NOT_YET = "not measured yet"
UNMEASURED = "UNMEASURED"  # in the header of one that was planned and not run


@dataclass(frozen=True)
class Recipe:
    """What a recipe's header says, and whether it fits."""

    name: str
    hardware: str
    task: str
    memory: str
    time: str
    reward: str  # what it reaches; of SFT, DPO and a reward model their own measure
    command: str  # that it is for: train, sft, dpo or rm
    is_measured: bool
    fits: bool
    why_not: str = ""
    changes: tuple[str, ...] = ()  # "option value": with what it fits, beyond what it says


def show(card: str | None, as_json: bool, out: TextIO | None = None) -> None:
    """Prints every recipe; `card`: as if there were cards of so many GB. UserError."""
    out = out or sys.stdout
    machine = Machine.detect()
    if card is not None:
        machine = with_cards(machine, cards_of(card))
    found = [look(name, path, machine) for name, path in RECIPES.items()]
    if as_json:
        print(json.dumps([asdict(each) for each in found]), file=out)
    else:
        where = "here" if card is None else where_of(machine.gpus)
        print("\n".join(lines(found, where)), file=out)


def where_of(gpus: Sequence[Gpu]) -> str:
    """ "24,12 GB", or what cards are called that have names."""
    sizes = [f"{gpu.memory_mb / 1024:g}" for gpu in gpus]
    if all(gpu.name == f"a card of {gb} GB" for gpu, gb in zip(gpus, sizes, strict=True)):
        return f"{','.join(sizes)} GB"
    return ", ".join(gpu.name for gpu in gpus)


def look(name: str, path: Path, machine: Machine) -> Recipe:
    """A recipe by its header, and by the planner of a run with it on `machine`."""
    text = path.read_text("utf-8")
    said = dict(FIELD.findall(text))
    hardware, task, memory, time = (said.get(field, "") for field in FIELDS[:4])
    command = command_of(str(path))
    why_not, changes = (judged if command == RUN.command else judged_stage)(name, machine)
    return Recipe(
        name,
        hardware,
        task,
        memory,
        time,
        said.get("Reward") or said.get("Result", ""),
        command,
        is_measured=UNMEASURED not in text,
        fits=not why_not,
        why_not=why_not,
        changes=changes,
    )


def judged(name: str, machine: Machine) -> tuple[str, tuple[str, ...]]:
    """-> (why a run with a recipe would not fit, "" where it does; the options that are changed so
    that it does)"""
    try:
        resolved = resolve({"recipe": name}, machine)
    except UserError as error:
        return str(error), ()
    found = [CHANGE.match(note) for note in resolved.notes]
    changes = [f"{each[1]} {each[2]}" for each in found if each and each[1] not in OF_THE_MACHINE]
    return refusal(resolved.config, machine), tuple(changes)


def judged_stage(name: str, machine: Machine) -> tuple[str, tuple[str, ...]]:
    """The same of a recipe of SFT, DPO or a reward model."""
    try:
        stage = resolve_stage(command_of(name), {"recipe": name})
        report = report_of(stage, machine)
    except UserError as error:
        return str(error), ()
    found = [CHANGE.match(note) for note in report["changed_to_fit"]]
    changes = tuple(f"{each[1]} {each[2]}" for each in found if each)
    if not machine.gpus and stage.options.model != EMBEDDED:
        return "no card", changes
    if report["fits"]:
        return "", changes
    card = report["card"]
    if card and not card["fits"]:
        needed, usable = (card[key] / 1024 for key in ("needed_mb", "usable_mb"))
        return f"a card needs {needed:.1f} GB and has {usable:.1f}", changes
    store = next(store for store in report["stores"] if not store["fits"])
    return f"{store['name']} needs {store['needed_mb'] / 1024:.1f} GB", changes


def refusal(config: Config, machine: Machine) -> str:
    """Why a run would not fit; "" where it does."""
    try:
        shape = shapes.shape_of(config.model)
        if shape is None:
            return shapes.why_unknown(config.model)
        forecast = forecast_of(config, shape, machine)
    except UserError as error:
        return str(error)
    if not machine.gpus and config.model != EMBEDDED:
        return "no card"
    if forecast.fits:
        return ""
    cards = [card for card in forecast.placement.cards if not card.fits]
    if cards:
        needed, usable = cards[0].needed_mb() / 1024, cards[0].usable_mb / 1024
        return f"a card needs {needed:.1f} GB and has {usable:.1f}"
    store = next(store for store in forecast.stores if not store.fits)
    return f"{store.name} needs {store.needed_mb / 1024:.1f} GB"


def lines(found: list[Recipe], where: str) -> list[str]:
    """The list for people: those that fit `where` first."""
    written = []
    for recipe in sorted(found, key=lambda each: not each.fits):
        changes = f", with {', '.join(recipe.changes)}" if recipe.changes else ""
        refused = f"does not fit {where}: {recipe.why_not}"
        fits = f"fits {where}{changes}" if recipe.fits else refused
        written += [
            f"{recipe.name}: {fits}",
            f"  {recipe.task}",
            f"  {recipe.hardware}",
            f"  memory {recipe.memory}",
            f"  time {recipe.time}; result {recipe.reward}"
            if recipe.is_measured
            else f"  time and result {NOT_YET}",
            f"  {calling.command(recipe.command, '--recipe', recipe.name)}",
            "",
        ]
    return written[:-1]

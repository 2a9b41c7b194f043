"""`unslothrl recipes`: the recipes of the package, and which fit this machine."""

import json
import re
from pathlib import Path
from typing import Any

from unslothrl.commands.plan import machine_with
from unslothrl.commands.planned import plan_of
from unslothrl.config.toml_files import RECIPES, command_of
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.system.machine import Machine
from unslothrl.tracking import calling

FIELDS = ("Hardware", "Task", "Memory", "Time", "Reward", "Result")  # of a recipe's header
FIELD = re.compile(rf"# ({'|'.join(FIELDS)}) +(.+)")
CHANGE = re.compile(r"(\w+) \S+ -> (\S+?)(?::|$)")  # a note on an option
OF_THE_MACHINE = ("learner_gpu_usage", "run_name")  # options that a recipe leaves open
NOT_YET = "not measured yet"
UNMEASURED = "UNMEASURED"  # in the header of one that was planned and not run


def show(card: str | None, as_json: bool) -> None:
    """Prints every recipe; `card`: as if there were GPUs of so many GB. UserError."""
    machine = machine_with(card)
    found = [look(name, path, machine) for name, path in RECIPES.items()]
    as_text = "\n".join(lines(found, "here" if card is None else card))
    print(json.dumps(found) if as_json else as_text)


def look(name: str, path: Path, machine: Machine) -> dict[str, Any]:
    """A recipe by its header, and whether it fits by the planner of a run with it on `machine`."""
    text = path.read_text("utf-8")
    said = {field.lower(): said for field, said in FIELD.findall(text)}
    command = command_of(str(path))
    try:
        report = plan_of(command, {"recipe": name}, machine).report
        why_not = refusal(report, machine)
    except UserError as error:
        report, why_not = {"changed_to_fit": []}, str(error)
    found = [CHANGE.match(note) for note in report["changed_to_fit"]]
    return {
        "name": name,
        **{field: said.get(field, "") for field in ("hardware", "task", "memory", "time")},
        "reward": said.get("reward") or said.get("result", ""),
        "command": command,
        "is_measured": UNMEASURED not in text,
        "fits": not why_not,
        "why_not": why_not,
        "changes": [f"{m[1]} {m[2]}" for m in found if m and m[1] not in OF_THE_MACHINE],
    }


def refusal(report: dict[str, Any], machine: Machine) -> str:
    """Why a run would not fit; "" where it does."""
    if not machine.gpus and report["model"] != EMBEDDED:
        return "no GPU"
    for gpu in report["cards"] if "cards" in report else [report["card"]]:
        if gpu is not None and not gpu["fits"]:
            needed, usable = (gpu[key] / 1024 for key in ("needed_mb", "usable_mb"))
            return f"a GPU needs {needed:.1f} GB and has {usable:.1f}"
    for store in report["stores"]:
        if not store["fits"]:
            return f"{store['name']} needs {store['needed_mb'] / 1024:.1f} GB"
    return ""


def lines(found: list[dict[str, Any]], where: str) -> list[str]:
    """The list for people: those that fit `where` first."""
    written = []
    for recipe in sorted(found, key=lambda each: not each["fits"]):
        changes = f", with {', '.join(recipe['changes'])}" if recipe["changes"] else ""
        fits = f"fits {where}{changes}"
        result = f"time {recipe['time']}; result {recipe['reward']}"
        written += [
            f"{recipe['name']}: "
            + (fits if recipe["fits"] else f"does not fit {where}: {recipe['why_not']}"),
            f"  {recipe['task']}",
            f"  {recipe['hardware']}",
            f"  memory {recipe['memory']}",
            f"  {result if recipe['is_measured'] else f'time and result {NOT_YET}'}",
            f"  {calling.command(recipe['command'], '--recipe', recipe['name'])}",
            "",
        ]
    return written[:-1]

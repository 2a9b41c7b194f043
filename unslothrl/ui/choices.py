"""What can be chosen on the page for a new run."""

import json
import os
from typing import Any

from unslothrl.config.toml_files import EMBEDDED_RECIPE, entries, path_of
from unslothrl.embedded import EMBEDDED
from unslothrl.rewards import builtin
from unslothrl.system.machine import Machine
from unslothrl.ui.processes import COMMANDS, OWN, asked

DATA = (".jsonl", ".json", ".csv", ".parquet")
ONE_PROCESS = {"cluster": ["local"], "engine": ["transformers"], "number_of_actors": ["0"]}


def choices() -> dict[str, Any]:
    """Recipes, those that fit first, with their options; files of the current folder; all options
    by command, with their help; and what is best without a GPU: one process, the embedded task."""
    machine = Machine.detect()
    recipes = json.loads(asked("recipes", "--json"))
    for each in recipes:
        each["options"] = entries(path_of(each["name"]))
    gpus = ", ".join(f"{gpu.name} ({gpu.memory_mb / 1024:.0f} GB)" for gpu in machine.gpus)
    files = sorted(each.name for each in os.scandir() if each.name.endswith(DATA))
    return {
        "machine": f"{machine.cpus} CPU cores, {gpus or 'no GPU'}",
        "recipes": recipes,
        "recipe": recipes[0]["name"] if gpus else EMBEDDED_RECIPE,
        "one_process": {} if gpus else ONE_PROCESS,
        "model": named_in(recipes, "model"),
        "dataset": files + named_in(recipes, "dataset"),
        "reward": builtin.names(),
        "options": {
            command: {
                table.spellings(name)[0]: entry.metadata["help"]
                for name, entry in table.options.items()
                if name not in OWN
            }
            for command, table in COMMANDS.items()
        },
    }


def named_in(recipes: list[dict[str, Any]], option: str) -> list[str]:
    return sorted({EMBEDDED, *(str(each["options"].get(option, EMBEDDED)) for each in recipes)})

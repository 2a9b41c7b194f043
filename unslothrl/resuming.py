"""`--resume auto`: the newest run of this recipe, or none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unslothrl.files import is_file
from unslothrl.tracking import origin
from unslothrl.tracking.run_folder import CONFIG

AUTO = "auto"
FREE = {  # in which runs of one recipe may differ: where they are, what they write, their machines
    "resume", "recipe", "output_dir", "run_name", "track", "save_every", "checkpoint_every",
    "keep_checkpoints", "profile", "cluster", "number_of_actors", "number_of_learners",
    "min_actors", "ray_address", "ray_port", "ray_temp_dir",
}  # fmt: skip


def recipe_of(user: Mapping[str, Any]) -> dict[str, Any]:
    """What the user set, as run.json keeps it."""
    return json.loads(json.dumps({name: user[name] for name in sorted(user.keys() - FREE)}))


def newest(user: Mapping[str, Any], output_dir: str) -> Path | None:
    """The run that goes on: that of `run_name` if the user gave one, else the newest that was begun
    with the same options, but for those that are `FREE`."""
    parent = Path(output_dir)
    if user.get("run_name") is not None:
        named = parent / user["run_name"]
        return named if is_file(named / CONFIG) else None
    recipe = recipe_of(user)
    found = [
        folder
        for folder in (parent.iterdir() if parent.is_dir() else ())
        if is_file(folder / CONFIG) and origin.read(folder).recipe == recipe
    ]
    return max(found, key=begun, default=None)


def begun(folder: Path) -> tuple[str, float]:
    """Runs in the order in which they were begun."""
    return origin.read(folder).started, (folder / CONFIG).stat().st_mtime

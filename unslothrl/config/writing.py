"""Options as TOML, the contents of a run's config.toml."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unslothrl.algorithms.objective import Part
from unslothrl.config.names import SECTION
from unslothrl.config.offline_options import TABLES
from unslothrl.config.option import OBJECTIVE
from unslothrl.config.options import PARTS, Config
from unslothrl.config.parts import objective_of
from unslothrl.config.reading import COMMAND
from unslothrl.config.values import RUN, toml_value
from unslothrl.text import plain, redacted, redacted_values


def to_toml(options: Any, facts: Sequence[str] = ()) -> str:
    """All options of a command as a recipe that reads back as the same, but for secrets, which are
    hidden; unset ones and `facts` of the run are comments."""
    table = next(each for each in (RUN, *TABLES.values()) if each.config is type(options))
    lines = [
        "# All options of this run, as resolved. Usable as a recipe, --recipe FILE.toml, from any",
        "# folder: only output_dir is relative to where it is used.",
    ]
    lines += [f"# {plain(redacted(fact))}" for fact in facts]
    if table is not RUN:
        lines += ["", f"{COMMAND} = {toml_value(table.command)}"]
    functions = functions_of(options) if table is RUN else {}
    sections = {OBJECTIVE: SECTION} if table is RUN else {}
    groups = dict.fromkeys(entry.metadata["group"] for entry in table.options.values())
    for group in sorted(groups, key=lambda each: each in sections):  # TOML's sections come last
        lines.append(f"\n[{sections[group]}]" if group in sections else f"\n# {group}")
        for name, entry in table.options.items():
            if entry.metadata["group"] == group:
                value = redacted_values(getattr(options, name))
                unset = f"# {name} is {functions.get(name, 'not set')}"
                lines.append(unset if value is None else f"{name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def functions_of(config: Config) -> dict[str, str]:
    """Parts of the objective that are functions of the learner's file: name -> what to call it."""
    file, objective = Path(config.learner).name, objective_of(config)
    parts = {name: getattr(objective, name) for name in PARTS}
    return {
        name: plain(f"{part.name} (function of {file})")
        for name, part in parts.items()
        if isinstance(part, Part)
    }

"""A config as TOML."""

import json
from typing import Any

from unslothrl.config.options import OPTIONS, Config


def to_toml(config: Config) -> str:
    """All options as a recipe that reads back as the same config; unset ones are comments."""
    lines = ["# All options of this run, as resolved. Usable as a recipe: --recipe FILE.toml"]
    for group in dict.fromkeys(entry.metadata["group"] for entry in OPTIONS.values()):
        lines.append(f"\n# {group}")
        for name, entry in OPTIONS.items():
            if entry.metadata["group"] == group:
                value = getattr(config, name)
                unset = f"# {name} is not set"
                lines.append(unset if value is None else f"{name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):  # TOML's basic strings are JSON's, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)

"""What docs/environments.md shows: its files and its commands."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "environments.md").read_text()


def files() -> dict[str, str]:
    """The files that the page shows: those of Python by the name in their first line, and the rows
    of passages.jsonl."""
    shown = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
    (rows,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    return {**shown, "passages.jsonl": rows}


def commands() -> list[str]:
    """Every command that trains, in its order."""
    pattern = r"^ {4}(unslothrl (?:grpo|train) .*)$|`(unslothrl train [^`]*)`"
    found = [" ".join((block or line).split()) for block, line in re.findall(pattern, PAGE, re.M)]
    return [command for command in found if " suites/" not in command]  # which is tested by itself

"""What docs/environments.md shows: its files, its commands, and its parts."""

import itertools
import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "environments.md").read_text()
COMMAND = re.compile(
    r"^ {4}(python train_distributed\.py .*)$|`(python train_[^`]*)`", re.MULTILINE
)
OF_PACKAGES = re.compile(  # rows of the last table, whose packages are tested by themselves
    r"\| (\[GEM\]|\[TextArena\]|\[reasoning-gym\]|\[?OpenEnv|\[?verifiers)"
)


def files() -> dict[str, str]:
    """The files that the page shows: those of Python by the name in their first line, and the rows
    of passages.jsonl."""
    shown = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
    (rows,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    return {**shown, "passages.jsonl": rows}


def commands() -> list[str]:
    """Every command that trains, in its order."""
    found = [" ".join((block or inline).split()) for block, inline in COMMAND.findall(PAGE)]
    return [command for command in found if " suites/" not in command]  # as OF_PACKAGES


def parts() -> list[str]:
    """Paragraphs, items and rows of tables: what says something, without code and headings."""
    text = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    text = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)
    found = re.split(r"\n\n+|\n(?=- |\| )", text)
    rows = [" ".join(part.split()) for part in found]
    heads = {row for row, after in itertools.pairwise(rows) if after.startswith("| ---")}
    return [
        row
        for row in rows
        if row
        and not row.startswith(("#", "| ---"))
        and row not in heads
        and not OF_PACKAGES.match(row)
    ]

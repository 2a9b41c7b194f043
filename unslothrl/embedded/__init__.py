"""Tiny base models and their problems: sums that never end, and requests to be turned into JSON."""

from pathlib import Path

EMBEDDED = "embedded"
"""What `--model` and `--dataset` call the sums and differences."""

EMBEDDED_JSON = "embedded-json"
"""What they call the requests for a table, answered by a JSON object."""

BASE = Path(__file__).parent / "base"
BASES = {EMBEDDED: BASE, EMBEDDED_JSON: Path(__file__).parent / "json" / "base"}
"""The model folders, made by `tools/make_embedded_base.py` and `tools/make_embedded_json.py`."""

ROWS = Path(__file__).parent / "json" / "rows"
"""The problems of `embedded-json`, made with its base."""

KNOWS = {
    EMBEDDED: (
        "the embedded base knows sums and differences of two numbers from 100 to 999, asked as in "
        '"What is 928 - 467?" and answered between <answer> and </answer>, and nothing else'
    ),
    EMBEDDED_JSON: (
        "the embedded-json base knows requests for a table, answered by a JSON object, and nothing "
        "else"
    ),
}

EMBEDDED_TURNS = "embedded-turns"
"""What `--adapter` calls it."""

TURNS = Path(__file__).parent / "turns"
"""An adapter on `embedded` that has seen a second turn, made by `tools/make_embedded_turns.py`."""


def adapter_folder(adapter: str | None) -> str | None:
    """The folder of what `--adapter` names."""
    return str(TURNS) if adapter == EMBEDDED_TURNS else adapter

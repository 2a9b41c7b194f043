"""The embedded default: a tiny base model and an endless set of arithmetic problems."""

from pathlib import Path

EMBEDDED = "embedded"
"""What `--model` and `--dataset` call them."""

BASE = Path(__file__).parent / "base"
"""The model folder, made by `tools/make_embedded_base.py`."""

KNOWS = (
    "the embedded base knows sums and differences of two numbers from 100 to 999, answered between "
    "<answer> and </answer>, and nothing else"
)

EMBEDDED_TURNS = "embedded-turns"
"""What `--adapter` calls it."""

TURNS = Path(__file__).parent / "turns"
"""An adapter on it that has seen a second turn, made by `tools/make_embedded_turns.py`."""


def adapter_folder(adapter: str | None) -> str | None:
    """The folder of what `--adapter` names."""
    return str(TURNS) if adapter == EMBEDDED_TURNS else adapter

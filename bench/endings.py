"""Completions of random weights end, too: at random, not all at the longest."""

import json
from pathlib import Path

ONE_IN = 16  # tokens, on average


def end_at_random(engine, base: Path) -> None:
    """Lets one token id in `ONE_IN` end a completion of `engine`, a `VllmEngine` over `base`.

    Random weights draw every token alike, so that the one that ends a completion hardly comes: all
    would be as long as they may be, and be done in the same step.
    """
    vocabulary = json.loads((base / "config.json").read_text())["vocab_size"]
    engine.stop = sorted({*engine.stop, *range(ONE_IN, vocabulary, ONE_IN)})

"""Makes completions of random weights end at random lengths instead of at the longest."""

import json
from pathlib import Path

ONE_IN = 16  # tokens, on average


def end_at_random(engine, base: Path) -> None:
    """Lets one token id in `ONE_IN` end a completion of `engine`, a `VllmEngine` over `base`.

    Random weights sample all tokens with nearly equal probability, so the end-of-sequence token is
    rare: all completions would reach the longest length and end in the same step.
    """
    vocabulary = json.loads((base / "config.json").read_text())["vocab_size"]
    engine.stop = sorted({*engine.stop, *range(ONE_IN, vocabulary, ONE_IN)})

"""Writes unslothrl/weights/counts.json: the layers of `shapes.OTHERS`, by transformers.

    python tools/count_models.py

So that `plan` and `recipes` know them at once; after a change to `OTHERS` or `decoder.count`.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from unslothrl.weights import shapes


def counts() -> dict[str, dict]:
    return {
        name: shapes.by_transformers(json.dumps(config)) for name, config in shapes.OTHERS.items()
    }


if __name__ == "__main__":
    rows = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in counts().items()]
    shapes.COUNTS.write_text("{\n" + ",\n".join(rows) + "\n}\n")

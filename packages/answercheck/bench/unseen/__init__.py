"""Golds with right and wrong answers, written by someone who had not seen how the reward works.

`core` keeps a wrong answer only where its value differs from the gold's, `hand.jsonl` and
`letters.txt` were written by hand, and `check_labels` reads every pair again with a parser of its
own (`reader`, `regions`). The same at every run. bench/results/unseen-first.json is the
first measurement, taken before anything was changed because of this set.
"""

import importlib
import json
from pathlib import Path

from unseen.core import Book

GENERATORS = ["numbers", "roots", "special", "intervals", "collections", "matrices", "equations",
              "expressions", "letters", "parts", "text"]  # fmt: skip


def cases() -> list[dict]:
    """{"kind", "gold", "right", "wrong"} for 2,650 golds."""
    book = Book()
    for line in Path(__file__).with_name("hand.jsonl").read_text().splitlines():
        book.add(**json.loads(line), max_right=9, max_wrong=16)
    for name in GENERATORS:
        importlib.import_module(f"unseen.gen_{name}").build(book)
    return book.rows

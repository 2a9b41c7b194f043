"""What is trained on and what is held out, where the data does not say."""

import hashlib
import json
from typing import Any

import numpy as np

from unslothrl.data import sources
from unslothrl.data.columns import UnusableRow, attempt
from unslothrl.data.rows import PickedRows, Rows
from unslothrl.data.sources import Source
from unslothrl.errors import UserError
from unslothrl.records import seed_of


def split(options: Any, source: Source) -> tuple[Rows, Rows]:
    """-> (training rows, held-out rows), disjoint even where a problem is repeated. `options`:
    dataset, eval_dataset, holdout, seed and reader, as in `data.tasks.DataOptions`.

    A data set with a train and a test split keeps them, unless one is named; one with a single
    split has a seeded share held out, unless `--eval_dataset` names another source.
    """
    splits = sources.load_splits(source)
    train, test = sources.train_of(splits), sources.test_of(splits)
    rows = splits[train]
    if options.eval_dataset:
        return rows, []
    if test is not None and test != train and len(splits[test]):
        return rows, splits[test]
    keys = problem_keys(rows, options.reader, seed_of(options.seed, "held out"))
    held_out = least(keys, options.holdout, options.dataset)
    return PickedRows(rows, indices(~held_out)), PickedRows(rows, indices(held_out))


def least(keys: np.ndarray, share: float, name: str) -> np.ndarray:
    """Whether each row has one of the least keys, `share` of all that differ, [rows]. UserError."""
    in_order = np.sort(keys)
    is_new = np.concatenate(([True], in_order[1:] != in_order[:-1]))
    different = int(is_new.sum())
    count = max(1, round(share * different))
    if count >= different:
        counts = f"{count} of {different} different problems held out"
        raise UserError(f"dataset {name}: nothing is left to train on with {counts}: give more")
    return keys < in_order[np.searchsorted(np.cumsum(is_new, dtype=np.uint32), count + 1)]


def indices(mask: np.ndarray) -> np.ndarray:
    """Where a mask holds, in half of the memory that NumPy takes."""
    return np.flatnonzero(mask).astype(np.uint32)


def problem_keys(rows: Rows, reader: Any, seed: int = 0) -> np.ndarray:
    """A hash of the seed and each row's conversation, [rows].

    `reader.prompt(row)` is what makes a problem, in JSON's types; it raises UnusableRow. UserError,
    with the first reason, where more than half of the rows have none.
    """
    keys = np.empty(len(rows), np.uint64)
    unusable, first = 0, ""
    for index in range(len(rows)):
        prompt = attempt(reader.prompt, rows[index])
        if isinstance(prompt, UnusableRow):
            unusable, first = unusable + 1, first or f"row {index + 1}: {prompt}"
        text = "" if isinstance(prompt, UnusableRow) else json.dumps(prompt)
        digest = hashlib.blake2b(text.encode(), digest_size=8, key=seed.to_bytes(8, "big")).digest()
        keys[index] = int.from_bytes(digest, "big")
    if unusable > len(rows) / 2:
        raise UserError(f"dataset {first} ({unusable} of {len(rows)} rows cannot be used)")
    return keys

"""Where rows come from: the embedded generator, a local file, or the Hugging Face hub."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from unslothrl.errors import UserError
from unslothrl.files import exists

EMBEDDED = "embedded"
FILE_SUFFIXES = (".jsonl", ".json")


def is_local(name: str) -> bool:
    """Whether the name can only mean a file: it exists, or it is written like a path."""
    return exists(name) or name.endswith(FILE_SUFFIXES) or name.startswith((".", "/", "~"))


def load_splits(name: str) -> dict[str, list[dict]]:
    """Split name -> rows. A local file is one split, named "all".

    Raises UserError for a file or data set that is not there, is empty or cannot be read.
    """
    if is_local(name):
        return {"all": read_file(Path(os.path.expanduser(name)))}
    return _load_from_hub(name)


def read_file(path: Path) -> list[dict]:
    """The objects of a JSONL file, or of a JSON file that holds a list of them."""
    if not path.is_file():
        raise UserError(f"dataset {path}: no such file: check the path")
    if path.suffix not in FILE_SUFFIXES:
        raise UserError(f"dataset {path}: unknown kind of file: use {' or '.join(FILE_SUFFIXES)}")
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows begins files with a mark
    except UnicodeDecodeError as error:
        raise UserError(
            f"dataset {path}: byte {error.start} is not UTF-8: save it as UTF-8"
        ) from None
    rows = list(_parse_lines(path, text) if path.suffix == ".jsonl" else _parse_list(path, text))
    if not rows:
        raise UserError(f"dataset {path}: it is empty: give a file with at least 2 rows")
    return rows


def _parse_lines(path: Path, text: str) -> Iterator[dict]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"dataset {path}: line {number} is not JSON ({error}): mend or remove the line"
            ) from None
        if not isinstance(row, dict):
            raise UserError(
                f"dataset {path}: line {number} must be an object, got {type(row).__name__}: "
                'write {"problem": ..., "answer": ...}'
            )
        yield row


def _parse_list(path: Path, text: str) -> list[dict]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"dataset {path}: it is not JSON ({error}): mend it, or name the file .jsonl if it has "
            "one object a line"
        ) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"dataset {path}: must be a list of objects: use [{{...}}, {{...}}]")
    return rows


def _load_from_hub(name: str) -> dict[str, list[dict]]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    try:
        try:
            found = load_dataset(name)
        except ValueError as error:  # a data set with several configurations, like openai/gsm8k
            if "Config name is missing" not in str(error):
                raise
            found = load_dataset(name, "main")
    except (DatasetNotFoundError, ConnectionError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"dataset {name}: not a local file, and the hub did not give it ({reason}): "
            "check the name and the network, or give a .jsonl file"
        ) from None
    return {split: list(rows) for split, rows in found.items()}

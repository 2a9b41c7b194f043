"""Where rows come from: the embedded generator, local files and folders, the Hugging Face hub.

    NAME[:CONFIG][@SPLIT][[FROM:TO]]      openai/gsm8k:main@train[:1000]
    MATH-500, GSM8K, HumanEval, ...       evaluation sets in `NAMED`; MATH-500=FILE: graded alike

NAME is a hub id, a file (`files.READERS`), or a folder of files whose names say what split they
are. Without a split, a slice is one of the training rows.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unslothrl.data import files
from unslothrl.data.files import PickedRows, Rows
from unslothrl.data.formats import UnusableRow, attempt, parsed
from unslothrl.embedded import EMBEDDED, EMBEDDED_JSON, ROWS
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, is_folder, leads_out
from unslothrl.records import seed_of
from unslothrl.text import one_line

HELD_OUT = "held_out"  # the eval set where none is named
WHOLE = "all"  # the split of a file or folder that names none
TRAIN = ("train", "training", WHOLE)
TEST = ("test", "validation", "valid", "val", "dev", "eval")
NOT_ROWS = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
ADDRESS = re.compile(r"https?://(?:www\.)?huggingface\.co/(?:datasets/)?([\w.-]+/[\w.-]+)")
FORM = re.compile(
    r"(?P<name>.+?)(?::(?P<config>[\w.-]+))?(?:@(?P<split>[\w.-]+))?"
    r"(?:\[(?P<start>-?\d{0,18}):(?P<stop>-?\d{0,18})\])?"
)


@dataclass(frozen=True)
class Source:
    """A source's text, taken apart."""

    name: str
    config: str | None = None
    split: str | None = None
    start: int | None = None
    stop: int | None = None
    known: str | None = None  # the name that it has in `NAMED`

    @property
    def is_local(self) -> bool:
        """Whether the name can only mean a file: it exists, or it is written like a path."""
        is_path = self.name.startswith((".", "/", "~"))
        return is_path or files.kind_of(self.name) is not None or exists(self.name)

    @property
    def label(self) -> str:
        """Its name, wherever it lies: task ids and names of eval sets are made of it."""
        return self.known or (expanded(self.name).name if self.is_local else self.name)


def parse(text: str) -> Source:
    """UserError for a text that names nothing."""
    if text.strip() and exists(text):
        return Source(text)
    if (known := name_of(text)) is not None:
        return replace(parse(NAMED[known][0]), known=known)
    if (address := ADDRESS.match(text)) is not None:
        raise UserError(f"dataset {text} is an address: set {address[1]}")
    parts = FORM.fullmatch(text)
    if parts is None or not text.strip() or (text.endswith("]") and parts["start"] is None):
        raise UserError(f"dataset {text}: must be written NAME, NAME@SPLIT or NAME@SPLIT[:1000]")
    name, config = parts["name"], parts["config"]
    start, stop = (int(parts[key]) if parts[key] else None for key in ("start", "stop"))
    if (known := name_of(name)) is not None:
        whole = parse(known)
        return replace(whole, split=parts["split"] or whole.split, start=start, stop=stop)
    if config is not None and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        name, config = f"{name}:{config}", None  # a path with a colon
    return Source(name, config, parts["split"], start, stop)


def absolute(text: str) -> str:
    """The same source, a file or folder by its whole path."""
    if text == EMBEDDED:
        return text
    source = parse(text)
    if not source.is_local or not text.startswith(source.name):
        return text
    return str(expanded(source.name).absolute()) + text.removeprefix(source.name)


def absolute_eval(text: str) -> str:
    """The same for a text of `--eval_dataset`."""
    sets = list(named_sources(text))
    if text.lstrip().startswith("{"):
        return json.dumps({name: absolute(source) for name, source in sets})
    ((_, source),) = sets
    return text.removesuffix(source) + absolute(source)


def load_splits(source: Source) -> dict[str, Rows]:
    """Split name -> rows, only the one that the source names if it names one. UserError."""
    splits = local_splits(expanded(source.name)) if source.is_local else hub_splits(source)
    if source.split is not None:
        if list(splits) == [WHOLE] and source.split in TRAIN:
            splits = {source.split: splits[WHOLE]}  # all that a file has
        if source.split not in splits:
            known = ", ".join(splits)
            raise UserError(f"dataset {source.name}: no split {source.split}: set one of {known}")
        splits = {source.split: splits[source.split]}
    if source.start is None and source.stop is None:
        return splits
    name = source.split or train_of(splits)
    indices = range(len(splits[name]))[source.start : source.stop]
    if not len(indices):
        rows = len(splits[name])
        raise UserError(f"dataset {source.name}: its slice is empty, {name} has {rows} rows")
    return {**splits, name: PickedRows(splits[name], indices)}


def train_of(splits: dict[str, Rows]) -> str:
    """The name of the split that is trained on: the first where none has a usual name."""
    return next((name for name in TRAIN if name in splits), next(iter(splits)))


def test_of(splits: dict[str, Rows]) -> str | None:
    """The name of the split that is evaluated on, None without one of a usual name."""
    return next((name for name in TEST if name in splits), None)


def hub_splits(source: Source) -> dict[str, Rows]:
    """Split name -> rows, kept on disk by the `datasets` library and read row by row. UserError."""
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    name, config, known = source.name, source.config, source.known
    try:
        splits = load_dataset(name, config)
    except Exception as error:  # of HTTP, of sockets, of the hub's own checks, of others' files
        if config is None and "Config name is missing" in str(error):  # as of openai/gsm8k
            return hub_splits(replace(source, config="main"))
        what, instead = (f"{known}: {name}", f"{known}=FILE") if known else (name, "FILE")
        raise UserError(
            f"dataset {what}: not a local file, and could not be loaded from the hub "
            f"({one_line(error)}): check the name and the network, or give {instead}.jsonl"
        ) from None
    return {str(split): rows for split, rows in splits.items()}


def local_splits(path: Path) -> dict[str, Rows]:
    """Split name -> rows, of a file or of the files in a folder. UserError."""
    if not is_folder(path):
        return {WHOLE: files.read(path)}
    by_split: dict[str, list[Rows]] = {}
    for file in sorted(files.below(path)):
        is_known = files.kind_of(file.name) and file.name not in NOT_ROWS
        if is_known and file.is_file() and not file.name.startswith("_"):
            if leads_out(file, path):
                raise UserError(f"dataset {path}: {file.name} is a link that leads out of it")
            by_split.setdefault(split_of(file.relative_to(path)), []).append(files.read(file))
    if not by_split:
        known = ", ".join(files.READERS)
        raise UserError(f"dataset {path}: no file with rows in this folder: use {known}")
    return {name: files.joined(parts) for name, parts in by_split.items()}


def split_of(file: Path) -> str:
    """The split in the name of a file, such as train-00000-of-00002.parquet, or of its folders."""
    parts = (file.stem, *file.parts[-2::-1])
    words = (word for part in parts for word in re.split(r"[^a-z]+", part.lower()))
    return next((word for word in words if word in (*TRAIN, *TEST)), WHOLE)


def eval_sources(eval_dataset: Sequence[str]) -> dict[str, str | None]:
    """Name of each eval set -> its source; None: what the training set holds out. UserError."""
    if not eval_dataset:
        return {HELD_OUT: None}
    by_name: dict[str, str | None] = {}
    for text in eval_dataset:
        for name, source in named_sources(text):
            if name in by_name:
                raise UserError(f"eval_dataset {name} is given twice: set NAME={source}")
            by_name[name] = source
    return by_name


def named_sources(text: str) -> Iterator[tuple[str, str]]:
    """The eval sets that one text names, with their sources. UserError."""
    if text.lstrip().startswith("{"):
        table = parsed(text)
        if not isinstance(table, dict):
            raise UserError(f"eval_dataset {text!r:.60} is not JSON: fix it")
        for name, source in table.items():
            if not isinstance(source, str) or not source or not is_name(name):
                raise UserError(f"eval_dataset {name!r:.60}: {source!r:.60} is no source")
            yield name, source
        return
    name, separator, source = text.partition("=")
    if separator and is_name(name):
        if not source:
            raise UserError(f"eval_dataset {text}: no source after =: set {name}=file.jsonl")
        yield name, source
    elif text == EMBEDDED:
        yield EMBEDDED, text
    else:
        yield parse(text).label.split("/")[-1].lstrip(".").split(".")[0] or HELD_OUT, text


def is_name(text: str) -> bool:
    """A name of an eval set, as it stands in metrics."""
    return text.replace("-", "_").replace(".", "_").isidentifier()


def split(options: Any, problem: Callable[[Mapping], Any]) -> tuple[Rows, Rows]:
    """-> (training rows, held-out rows), disjoint even where a problem is repeated. `options`:
    dataset, eval_dataset, holdout and seed; `problem` as in `problem_keys`.

    A data set with a train and a test split keeps them, unless one is named; one with a single
    split has a seeded share held out, unless `--eval_dataset` names another source.
    """
    splits = load_splits(parse(options.dataset))
    train, test = train_of(splits), test_of(splits)
    rows = splits[train]
    if options.eval_dataset:
        return rows, []
    if test is not None and test != train and len(splits[test]):
        return rows, splits[test]
    keys = problem_keys(rows, problem, seed_of(options.seed, "held out"))
    different = np.unique(keys)
    count = max(1, round(options.holdout * len(different)))
    if count >= len(different):
        raise UserError(
            f"dataset {options.dataset}: nothing is left to train on with {count} of "
            f"{len(different)} different problems held out: give more"
        )
    held_out = keys < different[count]
    trained, evaluated = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    return PickedRows(rows, trained), PickedRows(rows, evaluated)


def problem_keys(rows: Rows, problem: Callable[[Mapping], Any], seed: int = 0) -> np.ndarray:
    """A hash of the seed and each row's conversation, [rows].

    `problem(row)` is what makes a problem, in JSON's types; it raises UnusableRow. UserError,
    with the first reason, where more than half of the rows have none.
    """
    keys = np.empty(len(rows), np.uint64)
    unusable, first = 0, ""
    for index in range(len(rows)):
        prompt = attempt(problem, rows[index])
        if isinstance(prompt, UnusableRow):
            unusable, first = unusable + 1, first or f"row {index + 1}: {prompt}"
        text = "" if isinstance(prompt, UnusableRow) else json.dumps(prompt)
        digest = hashlib.blake2b(text.encode(), digest_size=8, key=seed.to_bytes(8, "big")).digest()
        keys[index] = int.from_bytes(digest, "big")
    if unusable > len(rows) / 2:
        raise UserError(f"dataset {first} ({unusable} of {len(rows)} rows cannot be used)")
    return keys


MATHS, CODE, JSON = "boxed", "code", "json"  # rewards
MATHS_TOO = ("accuracy", "boxed", "think_answer_tags", "search")  # compare with a gold answer too


NAMED = {  # name -> the source, the reward that grades it where the run's own rewards cannot
    "MATH-500": ("HuggingFaceH4/MATH-500@test", MATHS),
    "GSM8K": ("openai/gsm8k:main@test", MATHS),
    "AIME": ("HuggingFaceH4/aime_2024@train", MATHS),
    "AIME25": ("math-ai/aime25@test", MATHS),
    "AMC": ("math-ai/amc23@test", MATHS),
    "HumanEval": ("openai/openai_humaneval@test", CODE),
    "MBPP": ("google-research-datasets/mbpp:sanitized@test", CODE),
    EMBEDDED_JSON: (str(ROWS), JSON),
}
OTHER_NAMES = {"math500": "MATH-500", "aime24": "AIME", "amc23": "AMC"}


def name_of(text: str) -> str | None:
    """The set that a name means, whatever its case and hyphens; None for any other."""
    plain = text.lower().replace("-", "").replace("_", "")
    by_name = {name.lower().replace("-", ""): name for name in NAMED}
    return by_name.get(plain) or OTHER_NAMES.get(plain)


def reward_of(names: Iterable[str], given: str) -> str | None:
    """The reward that grades these eval sets; None where `given`, the first, does. UserError."""
    wanted: dict[str, str] = {}  # reward -> a set
    for known in filter(None, map(name_of, names)):
        wanted.setdefault(NAMED[known][1], known)
    if len(wanted) > 1:
        names = " and ".join(wanted.values())
        raise UserError(f"dataset {names} are graded by different rewards: evaluate each by itself")
    if not wanted or given in wanted or (MATHS in wanted and given in MATHS_TOO):
        return None
    return next(iter(wanted))

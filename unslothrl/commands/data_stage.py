"""`unslothrl data sft`, `data dpo` and `data rm`: rows as a stage trains on them."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from unslothrl.columns import UnusableRow
from unslothrl.commands.data import histogram, sampled, show, with_counts
from unslothrl.config.offline_options import OfflineOptions
from unslothrl.data import rendering
from unslothrl.data.rows import Rows
from unslothrl.offline import tables
from unslothrl.offline.examples import ExampleColumns
from unslothrl.offline.resolve import Stage
from unslothrl.weights import base_model

SHOWN = 3  # rows
MOST_SHOWN = 3_000  # characters of a part of one
NAMES = {"prompt_ids": "prompt", "chosen_ids": "chosen", "rejected_ids": "rejected"}

Decode = Callable[[list[int]], str]
Part = tuple[str, str]  # what it is to the training, its text


@dataclass(frozen=True)
class Description:
    """What a data set is to a stage."""

    command: str
    source: str
    rows: int  # of the training split, held-out ones left out
    looked_at: int
    evaluation: str  # the set's name
    evaluation_rows: int
    columns: dict[str, int]  # "prompt -> completion" -> rows
    model: str  # whose tokens are counted
    max_length: int
    lengths: list[int]  # of what is read at once, in tokens
    trained: int  # rows of the trainer's, of those that were looked at
    learnt: int  # tokens of these that count in the loss
    tokens: int  # of these altogether
    notes: list[str]
    not_used: list[str]
    refused: list[str]  # why a run would be
    examples: list[dict[str, Any]]  # the first few


def describe(stage: Stage, as_json: bool, out: TextIO | None = None) -> None:
    """Prints what the stage's data set is. Raises UserError where a run would."""
    show(lambda tell: look(stage, tell), lines, as_json, out)


def look(stage: Stage, progress: Callable[[str], None] = lambda name: None) -> Description:
    """Reads and renders the data set, or a sample of a long one. UserError where a run would."""
    options = stage.options
    progress(f"reading the tokenizer of {options.model}")
    base = base_model.find(options.model, weights=False)
    tokenizer = base_model.load_tokenizer(base, needs_template=False)
    writer, form = tables.writer_and_form(options, tokenizer)
    progress(f"reading {options.dataset}")
    train, evaluation, name = tables.rows_of(options, form)
    looked_at = sampled(train)
    progress("rendering its rows")
    found, skipped, _ = tables.table(looked_at, options, form, writer)
    held_out, missing, _ = tables.table(sampled(evaluation), options, form, writer)
    label, eval_label = f"dataset {options.dataset}", f"eval set {name}"
    not_used: list[str] = []
    for each, left_out in ((label, skipped), (eval_label, missing)):
        rendering.check_unusable(each, left_out)
        not_used += [f"{each}: {line}" for line in left_out.lines(options.max_length)]
    too_long = [each for each, kept in ((label, found), (eval_label, held_out)) if not kept]
    return Description(
        command=stage.command,
        source=options.dataset,
        rows=len(train),
        looked_at=len(looked_at),
        evaluation=name,
        evaluation_rows=len(evaluation),
        columns=columns_of(looked_at, options, form),
        model=options.model,
        max_length=options.max_length,
        lengths=[form.length(row) for row in found] + skipped.too_long,
        trained=len(found),
        learnt=sum(map(learnt_of, found)),
        tokens=sum(map(tokens_of, found)),
        notes=list(writer.notes),
        not_used=not_used,
        refused=[
            f"every row of {each} is longer, so a run would be refused: set --max_length higher"
            for each in too_long
        ],
        examples=[shown(row, form, writer.template.decode) for row in found[:SHOWN]],
    )


def shown(row: tables.TableRow, form: tables.Form, decode: Decode) -> dict[str, Any]:
    parts = parts_of(row, decode)
    return {"tokens": form.length(row), "learnt": learnt_of(row), "parts": parts}


def columns_of(rows: Rows, options: OfflineOptions, form: tables.Form) -> dict[str, int]:
    """Rows by the columns that were recognised."""
    found: Counter[str] = Counter()
    columns = ExampleColumns.of(options)
    for _, row in rendering.numbered(rows):
        try:
            *before, last = form.read(row, columns).columns
        except UnusableRow:
            continue
        is_pair = form is not tables.SFT
        ends = [before.pop(), last] if is_pair else [last]
        found[" -> ".join([*before, ", ".join(ends)])] += 1
    return dict(found.most_common())


def learnt_of(row: tables.TableRow) -> int:
    """Tokens that count in the loss; of a reward model all that it reads."""
    if "labels" in row:
        return int(np.count_nonzero(np.asarray(row["labels"]) != tables.IGNORED))
    return sum(int(np.count_nonzero(learnt_in(row, name))) for name in tables.LEARNT)


def learnt_in(row: tables.TableRow, name: str) -> np.ndarray:
    """Of each token of an answer in a pair whether it is learnt."""
    return np.asarray(row.get(tables.LEARNT[name], np.ones(len(row[name]))), bool)


def tokens_of(row: tables.TableRow) -> int:
    """Tokens of a row; of a pair those of both, each with its prompt."""
    if "labels" in row:
        return len(row["input_ids"])
    answers = sum(len(row[name]) for name in tables.LEARNT)
    return answers + 2 * len(row.get("prompt_ids", ()))


def parts_of(row: tables.TableRow, decode: Decode) -> list[Part]:
    """A row as the model reads it, in parts: "read" and "learnt" of an example; the prompt and both
    answers of a pair, of which "chosen, read" and "rejected, read" are turns of others."""
    if "labels" in row:
        learnt = np.asarray(row["labels"]) != tables.IGNORED
        return split(row["input_ids"], learnt, ("learnt", "read"), decode)
    parts: list[Part] = []
    for name, said in NAMES.items():
        if name in tables.LEARNT:
            parts += split(row[name], learnt_in(row, name), (said, f"{said}, read"), decode)
        elif name in row:
            parts.append((said, decode(row[name].tolist())))
    return parts


def split(
    ids: np.ndarray, learnt: np.ndarray, names: tuple[str, str], decode: Decode
) -> list[Part]:
    """Tokens in parts that are learnt or not; `names`: of the two."""
    edges = [0, *(np.flatnonzero(np.diff(learnt)) + 1), len(ids)]
    return [
        (names[0] if learnt[begin] else names[1], decode(ids[begin:end].tolist()))
        for begin, end in itertools.pairwise(edges)
        if begin < end
    ]


def lines(data: Description, bar: str = "█") -> list[str]:
    """The description for people."""
    sample = "" if data.looked_at == data.rows else f" (of {data.looked_at:,} rows looked at)"
    what = "tokens in them"
    if data.command != "rm":
        what += f", {data.learnt:,} of them learnt"
    written = [
        f"{data.source} for {data.command}: {data.rows:,} rows{sample}",
        f"evaluated on   {data.evaluation_rows:,} rows ({data.evaluation})",
        f"columns        {with_counts(data.columns)}",
        f"trained        {data.trained:,} rows, {data.tokens:,} {what}",
        *(f"note           {note}" for note in data.notes),
        "",
    ]
    for number, example in enumerate(data.examples, start=1):
        learnt = f", {example['learnt']} learnt" if data.command == "sft" else ""
        written.append(f"--- row {number}, {example['tokens']} tokens{learnt}")
        written += beside(example["parts"])
    written.append(f"--- lengths in tokens of {data.model}")
    written += histogram(data.lengths, bar)
    written.append(f"--- rows not used, with --max_length {data.max_length}")
    return [*written, *(data.not_used or ["none"]), *data.refused]


def beside(parts: Sequence[Part]) -> list[str]:
    """Each line of a text after what it is to the training, so that no text can pass for another
    part."""
    width = max(len(name) for name, _ in parts)
    return [
        f"{name:<{width}} | {line}" for name, text in parts for line in shortened(text).split("\n")
    ]


def shortened(text: str) -> str:
    left_out = len(text) - MOST_SHOWN
    return text if left_out <= 0 else f"{text[:MOST_SHOWN]} [... {left_out:,} characters more]"

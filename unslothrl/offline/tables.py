"""Rows as tables of token ids, in the columns that TRL's trainers read.

    sft   input_ids, labels              -100 where a token is not learnt
    dpo   prompt_ids, chosen_ids, rejected_ids, and where an answer has turns of others
          chosen_learnt and rejected_learnt   of the answer's tokens, 0: read, not learnt
    rm    chosen_ids, rejected_ids       each with the prompt, and margin where the data has one

Rows that cannot be used, and those longer than `--max_length`, are left out and counted; none is
cut.
"""

import hashlib
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from unslothrl.config.offline_options import DpoOptions, OfflineOptions, SftOptions
from unslothrl.data import sources
from unslothrl.data.files import Rows
from unslothrl.data.formats import UnusableRow, attempt
from unslothrl.data.rendering import Skipped, check_usable, numbered
from unslothrl.embedded import EMBEDDED
from unslothrl.embedded import task as arithmetic
from unslothrl.errors import UserError
from unslothrl.files import expanded
from unslothrl.offline import examples
from unslothrl.offline.examples import Example, Pair, named_columns
from unslothrl.offline.sequences import Writer
from unslothrl.records import seed_of
from unslothrl.weights import adapter_use, starting_adapter

IGNORED = -100  # a label that is not learnt
LEARNT = {"chosen_ids": "chosen_learnt", "rejected_ids": "rejected_learnt"}
EMBEDDED_ROWS, EMBEDDED_EVAL_ROWS = 2_000, 200

TableRow = dict[str, Any]


class Form(NamedTuple):
    """What a trainer makes of a row."""

    read: Callable[[Mapping, Mapping[str, str]], Any]  # -> an Example, or a Pair
    write: Callable[[Writer, Any], list[TableRow]]

    def prompt(self, row: Mapping, columns: Mapping[str, str]) -> list[Any]:
        """What makes two rows the same problem: they are held out together."""
        read = self.read(row, columns)
        if isinstance(read, Pair):
            return list(read.messages)
        before = itertools.takewhile(lambda turn: turn["role"] != "assistant", read.messages)
        return list(before) or [read.text]

    def length(self, row: TableRow) -> int:
        """In tokens, of what the model reads at once."""
        ids = [row[name] for name in ("input_ids", *LEARNT) if name in row]
        return len(row.get("prompt_ids", ())) + max(map(len, ids))


@dataclass(frozen=True)
class Tables:
    """What a stage trains and is evaluated on: lists of rows, and notes on those left out."""

    train: list[TableRow]
    evaluation: list[TableRow]
    evaluation_name: str
    notes: tuple[str, ...]
    system_prompt: str = ""  # that all rows to train on have, "" where there is no such


def load(options: OfflineOptions, form: Form, writer: Writer) -> Tables:
    """The tables of a stage. Raises UserError."""
    train, evaluation, name = rows_of(options, form)
    filled: list[list[TableRow]] = []
    notes: list[str] = []
    prompts: list[str] = []
    for label, rows in ((f"dataset {options.dataset}", train), (f"eval set {name}", evaluation)):
        found, skipped, same = table(rows, options, form, writer)
        prompts.append(same)
        limit, kept = options.max_length, len(found)
        check_usable(label, skipped, kept, limit, option="max_length", what="rows")
        notes += skipped.notes(label, limit)
        filled.append(found)
    if options.system_prompt and not prompts[0]:
        notes.append("system_prompt has no effect on rows that are texts without turns")
    training, evaluation = filled
    if 0 < options.eval_problems < len(evaluation):  # the same of the same set
        evaluation = random.Random(seed_of(0, "eval")).sample(evaluation, options.eval_problems)
    return Tables(training, evaluation, name, tuple(notes), prompts[0])


def rows_of(options: OfflineOptions, form: Form) -> tuple[Rows, Rows, str]:
    """-> (training rows, evaluation rows, the name of the evaluation set)."""
    if options.dataset == EMBEDDED:
        train: Rows = embedded_pairs("train", seed_of(options.seed, "train"), EMBEDDED_ROWS)
        held_out: Rows = embedded_pairs("test", 0, EMBEDDED_EVAL_ROWS)  # the same in every run
    else:
        columns = named_columns(options)
        train, held_out = sources.split(options, lambda row: form.prompt(row, columns))
    if not options.eval_dataset:
        return train, held_out, sources.HELD_OUT
    ((name, text),) = sources.eval_sources(options.eval_dataset).items()
    if text == EMBEDDED:
        return train, embedded_pairs("test", 0, EMBEDDED_EVAL_ROWS), name
    by_split = sources.load_splits(sources.parse(text or options.dataset))
    return train, by_split[sources.test_of(by_split) or sources.train_of(by_split)], name


def table(
    rows: Rows, options: OfflineOptions, form: Form, writer: Writer
) -> tuple[list[TableRow], Skipped, str]:
    """-> (what a trainer reads of `rows`, what is left out, the system prompt of all)."""
    found: list[TableRow] = []
    prompts: set[str] = set()
    skipped, columns = Skipped(source=rows), named_columns(options)
    default = default_prompt(options)

    def written_of(row: Mapping) -> tuple[str, list[TableRow]]:
        read = form.read(row, columns)
        if options.system_prompt is not None:
            read = read.under(options.system_prompt)
        elif default and not read.system_prompt:
            read = read.under(default)
        return read.system_prompt, form.write(writer, read)

    for number, row in numbered(rows):
        skipped.rows += 1
        # a template may refuse some conversations
        answer = attempt(written_of, row, (UnusableRow, UserError))
        if isinstance(answer, Exception):
            skipped.add(str(answer), number)
            continue
        prompt, written = answer
        longest = max(map(form.length, written))
        if longest > options.max_length:
            skipped.too_long.append(longest)
        else:
            found += [  # ids in four bytes each: a list of Python's would take up to 36
                {n: np.asarray(v, np.int32) if isinstance(v, list) else v for n, v in one.items()}
                for one in written
            ]
            prompts.add(prompt)
    return alike(found), skipped, prompts.pop() if len(prompts) == 1 else ""


def default_prompt(options: OfflineOptions) -> str:
    """The system prompt of rows without: what the adapter that begins was told. UserError."""
    adapter = starting_adapter.folder(options)
    use = adapter_use.read(expanded(adapter)) if adapter else None
    return use.system_prompt if use is not None else ""


def alike(rows: list[TableRow]) -> list[TableRow]:
    """Rows with the same columns: where others have them a margin of 0, and all is learnt."""
    columns = {name for row in rows for name in row}
    for row in rows:
        if examples.MARGIN in columns:
            row.setdefault(examples.MARGIN, 0.0)
        for ids, learnt in LEARNT.items():
            if learnt in columns:
                row.setdefault(learnt, np.ones(len(row[ids]), np.int32))
    return rows


# The three forms


def sft_rows(writer: Writer, example: Example) -> list[TableRow]:
    return [
        {"input_ids": list(each.ids), "labels": np.where(each.learnt, each.ids, IGNORED).tolist()}
        for each in writer.sequences(example)
    ]


def dpo_rows(writer: Writer, pair: Pair) -> list[TableRow]:
    prompt, *answers = writer.pair(pair)
    row: TableRow = {"prompt_ids": list(prompt)}
    for (name, learnt), answer in zip(LEARNT.items(), answers, strict=True):
        row[name] = list(answer.ids)
        if not all(answer.learnt):
            row[learnt] = list(map(int, answer.learnt))
    return [row]


def rm_rows(writer: Writer, pair: Pair) -> list[TableRow]:
    prompt, chosen, rejected = writer.pair(pair)
    row: TableRow = {"chosen_ids": [*prompt, *chosen.ids], "rejected_ids": [*prompt, *rejected.ids]}
    return [row if pair.margin is None else {**row, "margin": pair.margin}]


def embedded_pairs(split: str, seed: int, count: int) -> list[TableRow]:
    """Problems with a right answer in the form that the rewards ask for, and a guess."""
    draw = random.Random(f"pairs {split} {seed}")
    return [
        {
            "prompt": arithmetic.text(*each),
            "chosen": arithmetic.careful_answer(*each),
            "rejected": arithmetic.careless_answer(*each, draw),
        }
        for each in itertools.islice(arithmetic.operands(split, draw), count)
    ]


SFT = Form(examples.example, sft_rows)
DPO = Form(examples.pair, dpo_rows)
RM = Form(examples.pair, rm_rows)


def writer_and_form(
    options: OfflineOptions, tokenizer: Any, started: str = ""
) -> tuple[Writer, Form]:
    """`started`: when the run has begun (`tracking.origin`), whose date its rows have."""
    if isinstance(options, SftOptions):
        return Writer(tokenizer, options.assistant_only_loss, started), SFT
    return Writer(tokenizer, started=started), DPO if isinstance(options, DpoOptions) else RM


def fingerprint(rows: Sequence[TableRow]) -> str:
    """What a resume compares: "60 rows, 8f3a..."."""
    digest = hashlib.sha256()
    for row in rows:
        for name, value in sorted(row.items()):
            content = np.asarray(value).tobytes()
            digest.update(f"{name} {len(content)} ".encode() + content)
    return f"{len(rows)} rows, {digest.hexdigest()[:16]}"

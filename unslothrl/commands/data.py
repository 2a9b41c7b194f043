"""`unslothrl data`: what a run would make of a data set, without a run: columns, prompts, lengths,
rows that are not used; of a stage what is learnt of each row."""

import contextlib
import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from unslothrl.cluster.build import data_options
from unslothrl.config.offline_options import TABLES, OfflineOptions
from unslothrl.config.options import Config
from unslothrl.data import rendering, sources, tasks
from unslothrl.data.columns import UnusableRow
from unslothrl.data.files import PickedRows, Rows
from unslothrl.data.formats import Reader
from unslothrl.embedded import EMBEDDED
from unslothrl.embedded import task as arithmetic
from unslothrl.offline import tables
from unslothrl.offline.examples import ExampleColumns
from unslothrl.offline.resolve import Stage
from unslothrl.offline.resolve import resolve as resolve_stage
from unslothrl.records import Task
from unslothrl.runs.resolve import resolve
from unslothrl.text import for_terminal
from unslothrl.weights import base_model

SHOWN, SHOWN_OF_STAGE = 5, 3  # prompts; rows of a stage
MOST_SHOWN = 3_000  # characters of a part of a row
LOOKED_AT = 2_000  # rows of a set with more than `tasks.MOST_EAGER`
BINS, BAR = 10, 40  # of the histogram: lines, characters
LONG_ANSWER = 200  # characters
DECIMAL_COMMA = re.compile(r"[-+]?\d+,(\d{1,2}|\d{4,})")  # 3,5 and 12,75, but not 1,000
LONGEST = 100_000_000  # tokens: no prompt is dropped while lengths are counted

Report = dict[str, Any]  # as JSON has it


def describe(command: str, flags: Mapping[str, Any], as_json: bool) -> None:
    """Prints what the data set is to a run of `command`. Raises UserError where a run would."""
    if command in TABLES:
        report = look_for_stage(resolve_stage(command, flags))
        text = stage_lines(report)
    else:
        report = look(resolve(flags).config)
        text = lines(report)
    print(json.dumps(report) if as_json else for_terminal("\n".join(text), kept="\n\t"))


def sampled(rows: Rows) -> Rows:
    """`LOOKED_AT` rows of a long set, in their order; all of a short one."""
    if len(rows) <= tasks.MOST_EAGER:
        return rows
    picked = np.random.RandomState(0).choice(len(rows), LOOKED_AT, replace=False)
    return PickedRows(rows, np.sort(picked))


def with_counts(counts: Mapping[Any, int]) -> str:
    """Names with their rows; a single one without."""
    named = [f"{name} ({count:,} rows)" for name, count in counts.items()]
    return ", ".join(named) if len(counts) > 1 else str(*counts)


def rows_of(report: Report) -> str:
    looked_at, rows = report["looked_at"], report["rows"]
    return f"{rows:,} rows" + ("" if looked_at == rows else f" (of {looked_at:,} rows looked at)")


def last_lines(report: Report, lengths: str, option: str) -> list[str]:
    """Lengths, and what is not used."""
    return [
        f"--- {lengths} in tokens of {report['model']}",
        *histogram(report["lengths"]),
        f"--- rows not used, with --{option} {report[option]}",
        *(report["not_used"] or ["none"]),
    ]


def histogram(lengths: list[int]) -> list[str]:
    """A line for each of at most `BINS` bins, the middle and the longest below."""
    low, high = min(lengths), max(lengths)
    width = 1 + (high - low) // BINS
    counts = np.bincount((np.asarray(lengths) - low) // width)
    rows = []
    for count, begin in zip(counts, itertools.count(low, width), strict=False):
        drawn = "█" * round(BAR * count / counts.max())
        rows.append(f"{begin:>7,} to {begin + width - 1:>7,}  {count:>7,}  {drawn}")
    middle, most = np.percentile(lengths, (50, 95))
    return [*rows, f"half up to {middle:,.0f}, 95% up to {most:,.0f}, longest {high:,}"]


# Reinforcement learning


def look(config: Config) -> Report:
    """Reads and renders the data set, or a sample of a long one. UserError where a run would."""
    tokenizer = base_model.load_tokenizer(base_model.find(config.model, weights=False))
    renderer = tasks.renderer_of(data_options(config), tokenizer)
    rows, held_out, by_split = open_rows(config)
    looked_at = sampled(rows)
    skipped = rendering.Skipped(source=looked_at)
    wide = dataclasses.replace(renderer, max_prompt_tokens=LONGEST)
    name = sources.parse(config.dataset).label
    lengths: list[int] = []
    answers: list[str] = []
    first: list[Task] = []
    for task in wide.tasks(name, rendering.numbered(looked_at), skipped):
        lengths.append(len(task.prompt_ids))
        answers.append(task.answer)
        first += [task] if len(first) < SHOWN else []
    rendering.check_usable(f"dataset {name}", skipped, len(lengths), config.max_prompt_tokens)
    not_evaluated: list[str] = []
    if config.eval_dataset or len(held_out):  # else a share of the rows that are looked at anyway
        _, not_evaluated = tasks.evals_of(data_options(config), wide, held_out)
    skipped.too_long = [length for length in lengths if length > config.max_prompt_tokens]
    notes = []
    if commas := [each for each in map(str.strip, answers) if DECIMAL_COMMA.fullmatch(each)]:
        said = f"answers that are numbers with a comma: {len(commas):,} ({commas[0]!r})"
        notes.append(f"{said}: write decimals with a point")
    keys = sources.problem_keys(looked_at, renderer.reader)
    found = recognised(looked_at, renderer.reader)
    return {
        "source": config.dataset,
        "rows": len(rows),  # of the split to train on, before any are held out
        "looked_at": len(looked_at),
        "splits": by_split,  # name -> rows
        **found,
        "system_prompt": renderer.system_prompt,  # what a row without one of its own gets
        "own_system_prompts": 0 if renderer.replaces else found["own_system_prompts"],
        "model": config.model,
        "max_prompt_tokens": config.max_prompt_tokens,
        "lengths": lengths,  # of every prompt, in tokens
        "repeated": len(keys) - len(np.unique(keys)),
        "notes": notes,
        "not_used": skipped.lines(config.max_prompt_tokens) + not_evaluated,
        "prompts": [
            {"prompt": task.prompt, "tokens": len(task.prompt_ids), "answer": task.answer}
            for task in first
        ],
    }


def open_rows(config: Config) -> tuple[Rows, Rows, dict[str, int]]:
    """-> (the rows that are trained on before any are held out, those of the split that is
    evaluated on, none where the data has none; rows of each split)."""
    if config.dataset == EMBEDDED:  # it has no end
        made = list(itertools.islice(arithmetic.problems("train", config.seed), LOOKED_AT))
        return made, [], {"train": len(made)}
    by_name = sources.load_splits(sources.parse(config.dataset))
    train, test = sources.train_of(by_name), sources.test_of(by_name)
    held_out = by_name[test] if test not in (None, train) else []
    return by_name[train], held_out, {name: len(rows) for name, rows in by_name.items()}


def recognised(rows: Rows, reader: Reader) -> Report:
    """Rows by their columns and by their turns, and those with a system prompt of their own."""
    records = usable(rows, reader.record)
    columns = Counter(f"{r.columns.prompt} -> {r.columns.answer or 'no answer'}" for r in records)
    return {
        "columns": dict(columns.most_common()),
        "turns": dict(sorted(Counter(len(r.messages) for r in records).items())),
        "own_system_prompts": sum(r.messages[0][0] == "system" for r in records),
    }


def usable(rows: Rows, read: Callable[[Mapping[str, Any]], Any]) -> list[Any]:
    """What `read` makes of the rows that it can use."""
    found = []
    for _, row in rendering.numbered(rows):
        with contextlib.suppress(UnusableRow):
            found.append(read(row))
    return found


def lines(report: Report) -> list[str]:
    """The description for people."""
    text = [
        f"{report['source']}: {rows_of(report)}",
        "splits         " + ", ".join(f"{name} {n:,}" for name, n in report["splits"].items()),
        f"columns        {with_counts(report['columns'])}",
        f"turns          {with_counts(report['turns'])}",
        f"repeated       {report['repeated']:,} rows repeat the problem of an earlier row",
        f"system prompt  {system_prompts(report)}",
        *(f"note           {line}" for line in report["notes"]),
        "",
    ]
    for number, prompt in enumerate(report["prompts"], start=1):
        answer = shortened(prompt["answer"], LONG_ANSWER)
        text += [f"--- prompt {number}, {prompt['tokens']} tokens, answer {answer!r}"]
        text += [prompt["prompt"]]
    text += last_lines(report, "prompt lengths", "max_prompt_tokens")
    if min(report["lengths"]) > report["max_prompt_tokens"]:
        text.append(
            "every prompt is longer, so a run would be refused: set --max_prompt_tokens "
            f"{max(report['lengths'])}"
        )
    return text


def system_prompts(report: Report) -> str:
    """Which system prompts the rows get, and how many rows each."""
    common = json.dumps(report["system_prompt"]) if report["system_prompt"] else "none"
    own = report["own_system_prompts"]
    if own == report["looked_at"]:
        return "each row's own"
    return f"{own:,} rows have their own, the others {common}" if own else common


# SFT, DPO and reward models


def look_for_stage(stage: Stage) -> Report:
    """Reads and renders the data set, or a sample of a long one. UserError where a run would."""
    options = stage.options
    base = base_model.find(options.model, weights=False)
    tokenizer = base_model.load_tokenizer(base, needs_template=False)
    writer, form = tables.writer_and_form(options, tokenizer)
    train, evaluation, name = tables.rows_of(options, form)
    looked_at = sampled(train)
    found, skipped, _ = tables.table(looked_at, options, form, writer)
    held_out, missing, _ = tables.table(sampled(evaluation), options, form, writer)
    not_used, refused = [], []
    for each, kept, left_out in (
        (f"dataset {options.dataset}", found, skipped),
        (f"eval set {name}", held_out, missing),
    ):
        rendering.check_unusable(each, left_out)
        not_used += [f"{each}: {line}" for line in left_out.lines(options.max_length)]
        if not kept:
            refused.append(
                f"every row of {each} is longer, so a run would be refused: set --max_length higher"
            )
    return {
        "command": stage.command,
        "source": options.dataset,
        "rows": len(train),  # held-out ones left out
        "looked_at": len(looked_at),
        "evaluation": name,
        "evaluation_rows": len(evaluation),
        "columns": stage_columns(looked_at, options, form),
        "model": options.model,
        "max_length": options.max_length,
        "lengths": [form.length(row) for row in found] + skipped.too_long,
        "trained": len(found),  # rows of the trainer's, of those that were looked at
        "learnt": sum(map(learnt_of, found)),  # tokens of these that count in the loss
        "tokens": sum(map(tokens_of, found)),  # of these altogether
        "notes": list(writer.notes),
        "not_used": not_used,
        "refused": refused,
        "examples": [
            {
                "tokens": form.length(row),
                "learnt": learnt_of(row),
                "parts": parts_of(row, writer.template.decode),
            }
            for row in found[:SHOWN_OF_STAGE]
        ],
    }


def stage_columns(rows: Rows, options: OfflineOptions, form: tables.Form) -> dict[str, int]:
    """Rows by the columns that were recognised."""
    columns = ExampleColumns.of(options)
    found: Counter[str] = Counter()
    for row in usable(rows, lambda row: form.read(row, columns)):
        answers = 1 if form is tables.SFT else 2  # the last columns
        names = row.columns
        found[" -> ".join([*names[:-answers], ", ".join(names[-answers:])])] += 1
    return dict(found.most_common())


def segments(row: tables.TableRow) -> list[tuple[str, np.ndarray, np.ndarray | None]]:
    """A row as the model reads it, an example, or the prompt and both answers of a pair: (name,
    tokens, of each whether it counts in the loss, None of a prompt). A reward model learns from
    all that it reads."""
    if "labels" in row:
        learnt = np.asarray(row["labels"]) != tables.IGNORED
        return [("", np.asarray(row["input_ids"]), learnt)]
    found: list[tuple[str, np.ndarray, np.ndarray | None]] = []
    if "prompt_ids" in row:
        found.append(("prompt", np.asarray(row["prompt_ids"]), None))
    for name, mask in tables.LEARNT.items():
        learnt = np.asarray(row.get(mask, np.ones(len(row[name]))), bool)
        found.append((name.removesuffix("_ids"), np.asarray(row[name]), learnt))
    return found


def parts_of(row: tables.TableRow, decode: Callable[[list[int]], str]) -> list[tuple[str, str]]:
    """(name, text) of the parts of a row that are learnt, and of those that are only read."""
    parts = []
    for name, ids, learnt in segments(row):
        if learnt is None:
            parts.append((name, decode(ids.tolist())))
            continue
        names = (f"{name}, read", name) if name else ("read", "learnt")
        edges = [0, *(np.flatnonzero(np.diff(learnt)) + 1), len(ids)]
        parts += [
            (names[int(learnt[begin])], decode(ids[begin:end].tolist()))
            for begin, end in itertools.pairwise(edges)
            if begin < end
        ]
    return parts


def learnt_of(row: tables.TableRow) -> int:
    """Tokens that count in the loss."""
    return sum(int(learnt.sum()) for _, _, learnt in segments(row) if learnt is not None)


def tokens_of(row: tables.TableRow) -> int:
    """Tokens of a row; of a pair those of both, each with its prompt."""
    return sum(len(ids) * (2 if name == "prompt" else 1) for name, ids, _ in segments(row))


def stage_lines(report: Report) -> list[str]:
    """The description for people."""
    learnt = "" if report["command"] == "rm" else f", {report['learnt']:,} of them learnt"
    text = [
        f"{report['source']} for {report['command']}: {rows_of(report)}",
        f"evaluated on   {report['evaluation_rows']:,} rows ({report['evaluation']})",
        f"columns        {with_counts(report['columns'])}",
        f"trained        {report['trained']:,} rows, {report['tokens']:,} tokens in them{learnt}",
        *(f"note           {note}" for note in report["notes"]),
        "",
    ]
    for number, example in enumerate(report["examples"], start=1):
        learnt = f", {example['learnt']} learnt" if report["command"] == "sft" else ""
        text += [f"--- row {number}, {example['tokens']} tokens{learnt}"]
        width = max(len(name) for name, _ in example["parts"])
        text += [  # each line after what it is, so that no text can pass for another part
            f"{name:<{width}} | {line}"
            for name, part in example["parts"]
            for line in shortened(part, MOST_SHOWN).split("\n")
        ]
    return [*text, *last_lines(report, "lengths", "max_length"), *report["refused"]]


def shortened(text: str, most: int) -> str:
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[:most]} [... {left_out:,} characters more]"

"""`unslothrl data`: what a run would make of a data set, without a run: columns, prompts, lengths,
rows that are not used; of a stage what is learnt of each row."""

import dataclasses
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import numpy as np
from rich.console import Console

from unslothrl.cluster.build import data_options
from unslothrl.config.offline_options import TABLES, OfflineOptions
from unslothrl.config.options import Config
from unslothrl.data import rendering, sources, tasks
from unslothrl.data.columns import UnusableRow
from unslothrl.data.formats import Reader
from unslothrl.data.rows import PickedRows, Rows
from unslothrl.embedded import EMBEDDED
from unslothrl.embedded import task as arithmetic
from unslothrl.offline import tables
from unslothrl.offline.examples import ExampleColumns
from unslothrl.offline.resolve import Stage
from unslothrl.offline.resolve import resolve as resolve_stage
from unslothrl.records import Task
from unslothrl.runs.resolve import resolve
from unslothrl.text import for_terminal
from unslothrl.tracking.terminal import Terminal
from unslothrl.weights import base_model

SHOWN, SHOWN_OF_STAGE = 5, 3  # prompts; rows of a stage
MOST_SHOWN = 3_000  # characters of a part of a row
LOOKED_AT = 2_000  # rows of a set with more than `tasks.MOST_EAGER`
BINS, BAR = 10, 40  # of the histogram: lines, characters
LONG_ANSWER = 200  # characters
# 3,5 and 12,75, but not 1,000 nor 3,141
DECIMAL_COMMA = re.compile(r"[-+]?(\d+,(\d{1,2}|\d{4,})|\d{4,},\d{3}|0\d*,\d{3})")
LONGEST = 100_000_000  # tokens: no prompt is dropped while lengths are counted
NAMES = {"chosen_ids": "chosen", "rejected_ids": "rejected"}

Tell = Callable[[str], None]  # what is being done
Report = dict[str, Any]  # as JSON has it


def describe(command: str, flags: Mapping[str, Any], as_json: bool) -> None:
    """Prints what the data set is to a run of `command`. Raises UserError where a run would."""
    if command in TABLES:
        stage = resolve_stage(command, flags)
        show(lambda tell: look_for_stage(stage, tell), stage_lines, as_json)
    else:
        config = resolve(flags).config
        show(lambda tell: look(config, tell), lines, as_json)


def show(
    looking: Callable[[Tell], Report],
    as_lines: Callable[[Report], list[str]],
    as_json: bool,
    out: TextIO | None = None,
) -> None:
    """Prints what `looking` finds, as JSON or as lines for people."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with Terminal(console=console) as view:
            report = looking(view.stage)
    else:
        report = looking(lambda name: None)
    text = json.dumps(report) if as_json else for_terminal("\n".join(as_lines(report)), kept="\n\t")
    print(text, file=out)


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
    bar = "█" if (getattr(sys.stdout, "encoding", None) or "utf-8").lower()[:3] == "utf" else "#"
    counts = np.bincount((np.asarray(lengths) - low) // width)
    rows = [
        f"{low + i * width:>7,} to {low + (i + 1) * width - 1:>7,}  {count:>7,}  "
        + bar * round(BAR * count / counts.max())
        for i, count in enumerate(counts)
    ]
    middle, most = np.percentile(lengths, (50, 95))
    return [*rows, f"half up to {middle:,.0f}, 95% up to {most:,.0f}, longest {high:,}"]


# Reinforcement learning


def look(config: Config, tell: Tell = lambda name: None) -> Report:
    """Reads and renders the data set, or a sample of a long one. UserError where a run would."""
    tell(f"reading the tokenizer of {config.model}")
    tokenizer = base_model.load_tokenizer(base_model.find(config.model, weights=False))
    renderer = tasks.renderer_of(data_options(config), tokenizer)
    tell(f"reading {config.dataset}")
    rows, held_out, by_split = open_rows(config)
    tell("rendering its prompts")
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
        "notes": notes_on(answers),
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
    columns: Counter[str] = Counter()
    turns: Counter[int] = Counter()
    with_system = 0
    for _, row in rendering.numbered(rows):
        try:
            record = reader.record(row)
        except UnusableRow:
            continue
        columns[f"{record.columns.prompt} -> {record.columns.answer or 'no answer'}"] += 1
        turns[len(record.messages)] += 1
        with_system += record.messages[0][0] == "system"
    by_column, by_turns = dict(columns.most_common()), dict(sorted(turns.items()))
    return {"columns": by_column, "turns": by_turns, "own_system_prompts": with_system}


def notes_on(answers: list[str]) -> list[str]:
    """Lines on answers that no completion is likely to give."""
    commas = [answer.strip() for answer in answers if DECIMAL_COMMA.fullmatch(answer.strip())]
    long = sum(len(answer) > LONG_ANSWER for answer in answers)
    notes = []
    if commas:
        notes.append(
            f"answers that are numbers with a comma: {len(commas):,} ({commas[0]!r}): write "
            "decimals with a point"
        )
    if long:
        notes.append(
            f"answers of over {LONG_ANSWER} characters, with no part marked as the final one: "
            f"{long:,}: set --answer_column, or a reward that needs none"
        )
    return notes


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


def look_for_stage(stage: Stage, tell: Tell = lambda name: None) -> Report:
    """Reads and renders the data set, or a sample of a long one. UserError where a run would."""
    options = stage.options
    tell(f"reading the tokenizer of {options.model}")
    base = base_model.find(options.model, weights=False)
    tokenizer = base_model.load_tokenizer(base, needs_template=False)
    writer, form = tables.writer_and_form(options, tokenizer)
    tell(f"reading {options.dataset}")
    train, evaluation, name = tables.rows_of(options, form)
    looked_at = sampled(train)
    tell("rendering its rows")
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
    decode = writer.template.decode
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
                "parts": [part for each in segments(row) for part in each.parts(decode)],
            }
            for row in found[:SHOWN_OF_STAGE]
        ],
    }


def stage_columns(rows: Rows, options: OfflineOptions, form: tables.Form) -> dict[str, int]:
    """Rows by the columns that were recognised."""
    found: Counter[str] = Counter()
    columns = ExampleColumns.of(options)
    for _, row in rendering.numbered(rows):
        try:
            *before, last = form.read(row, columns).columns
        except UnusableRow:
            continue
        ends = [last] if form is tables.SFT else [before.pop(), last]
        found[" -> ".join([*before, ", ".join(ends)])] += 1
    return dict(found.most_common())


@dataclasses.dataclass(frozen=True)
class Segment:
    """Tokens of a row that are one text; of a pair it has three."""

    name: str
    ids: np.ndarray
    learnt: np.ndarray | None  # of each token whether it counts in the loss; None: of a prompt

    def parts(self, decode: Callable[[list[int]], str]) -> list[tuple[str, str]]:
        """Its text in parts that are learnt and parts that are only read."""
        if self.learnt is None:
            return [(self.name, decode(self.ids.tolist()))]
        names = (f"{self.name}, read", self.name) if self.name else ("read", "learnt")
        edges = [0, *(np.flatnonzero(np.diff(self.learnt)) + 1), len(self.ids)]
        return [
            (names[int(self.learnt[begin])], decode(self.ids[begin:end].tolist()))
            for begin, end in itertools.pairwise(edges)
            if begin < end
        ]


def segments(row: tables.TableRow) -> list[Segment]:
    """A row as the model reads it: an example, or the prompt and both answers of a pair, in which
    turns of others are only read. A reward model learns from all that it reads."""
    if "labels" in row:
        learnt = np.asarray(row["labels"]) != tables.IGNORED
        return [Segment("", np.asarray(row["input_ids"]), learnt)]
    found = [Segment("prompt", row["prompt_ids"], None)] if "prompt_ids" in row else []
    for name, mask in tables.LEARNT.items():
        learnt = np.asarray(row.get(mask, np.ones(len(row[name]))), bool)
        found.append(Segment(NAMES[name], row[name], learnt))
    return found


def learnt_of(row: tables.TableRow) -> int:
    """Tokens that count in the loss."""
    learnt = (each.learnt for each in segments(row) if each.learnt is not None)
    return sum(int(np.count_nonzero(each)) for each in learnt)


def tokens_of(row: tables.TableRow) -> int:
    """Tokens of a row; of a pair those of both, each with its prompt."""
    return sum(len(each.ids) * (1 if each.name != "prompt" else 2) for each in segments(row))


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

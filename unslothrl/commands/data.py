"""What a run would make of a data set, without a run: columns, prompts, lengths, rows not used."""

import dataclasses
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np
from rich.console import Console

from unslothrl.columns import UnusableRow
from unslothrl.config.options import Config
from unslothrl.data import rendering, sources, splits, tasks
from unslothrl.data.reader import Reader
from unslothrl.data.rows import PickedRows, Rows
from unslothrl.embedded import EMBEDDED
from unslothrl.embedded import task as arithmetic
from unslothrl.runs.build import data_options
from unslothrl.tracking.terminal import Terminal
from unslothrl.types import Task
from unslothrl.untrusted import for_terminal
from unslothrl.weights import base_model

SHOWN = 5  # prompts
LOOKED_AT = 2_000  # rows of a set with more than `tasks.MOST_EAGER`
BINS, BAR = 10, 40  # of the histogram: lines, characters
LONG_ANSWER = 200  # characters
# 3,5 and 12,75, but not 1,000 nor 3,141
DECIMAL_COMMA = re.compile(r"[-+]?(\d+,(\d{1,2}|\d{4,})|\d{4,},\d{3}|0\d*,\d{3})")
LONGEST = 100_000_000  # tokens: no prompt is dropped while lengths are counted


@dataclass(frozen=True)
class Description:
    """What a data set is to a run; of the rows that it would train on."""

    source: str
    rows: int
    looked_at: int
    splits: dict[str, int]  # name -> rows
    columns: dict[str, int]  # "problem -> answer" -> rows
    turns: dict[int, int]  # turns of a conversation -> rows
    system_prompt: str  # what a row without one of its own gets
    own_system_prompts: int  # rows that have one
    model: str  # whose tokens are counted
    max_prompt_tokens: int
    lengths: list[int]  # of every prompt, in tokens
    repeated: int  # rows with the problem of an earlier row
    notes: list[str]  # on answers that may be others than they seem
    not_used: list[str]
    prompts: list[dict[str, object]]  # the first few


def describe(config: Config, as_json: bool, out: TextIO | None = None) -> None:
    """Prints what `config.dataset` is. Raises UserError where a run would."""
    show(lambda stage: look(config, stage), lines, as_json, out)


def show(
    looking: Callable[[Callable[[str], None]], Any],
    as_lines: Callable[[Any, str], list[str]],
    as_json: bool,
    out: TextIO | None,
) -> None:
    """Prints what `looking` finds, a dataclass, as JSON or as lines whose bars are drawn with the
    character that `as_lines` gets. `looking` is told where to say how far it is."""
    out = out or sys.stdout
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with Terminal(console=console) as view:
            description = looking(view.stage)
    else:
        description = looking(lambda name: None)
    if as_json:
        print(json.dumps(dataclasses.asdict(description)), file=out)
        return
    is_unicode = (getattr(out, "encoding", None) or "utf-8").lower().startswith("utf")
    text = "\n".join(as_lines(description, "█" if is_unicode else "#"))
    print(for_terminal(text, kept="\n\t"), file=out)


def look(config: Config, stage: Callable[[str], None] = lambda name: None) -> Description:
    """Reads and renders the data set, or a sample of a long one. UserError where a run would."""
    stage(f"reading the tokenizer of {config.model}")
    tokenizer = base_model.load_tokenizer(base_model.find(config.model, weights=False))
    renderer = tasks.renderer_of(data_options(config), tokenizer)
    stage(f"reading {config.dataset}")
    rows, held_out, by_split = open_rows(config)
    stage("rendering its prompts")
    looked_at = sampled(rows)
    skipped = rendering.Skipped(source=looked_at)
    wide = dataclasses.replace(renderer, max_prompt_tokens=LONGEST)
    name = sources.parse(config.dataset).label
    lengths: list[int] = []
    first: list[Task] = []
    answers: list[str] = []
    for task in wide.tasks(name, rendering.numbered(looked_at), skipped):
        lengths.append(len(task.prompt_ids))
        answers.append(task.answer)
        first += [task] if len(first) < SHOWN else []
    rendering.check_usable(f"dataset {name}", skipped, len(lengths), config.max_prompt_tokens)
    more = not_evaluated(config, held_out, wide)
    skipped.too_long = [length for length in lengths if length > config.max_prompt_tokens]
    columns, turns, with_system = recognised(looked_at, renderer.reader)
    keys = splits.problem_keys(looked_at, renderer.reader)
    return Description(
        source=config.dataset,
        rows=len(rows),
        looked_at=len(looked_at),
        splits=by_split,
        columns=columns,
        turns=turns,
        system_prompt=renderer.system_prompt,
        own_system_prompts=0 if renderer.replaces else with_system,
        model=config.model,
        max_prompt_tokens=config.max_prompt_tokens,
        lengths=lengths,
        repeated=len(keys) - len(np.unique(keys)),
        notes=notes_on(answers),
        not_used=skipped.lines(config.max_prompt_tokens) + more,
        prompts=[
            {"prompt": task.prompt, "tokens": len(task.prompt_ids), "answer": task.answer}
            for task in first
        ],
    )


def notes_on(answers: list[str]) -> list[str]:
    """Lines on answers that no completion is likely to give."""
    commas = [answer for answer in answers if DECIMAL_COMMA.fullmatch(answer.strip())]
    long = [answer for answer in answers if len(answer) > LONG_ANSWER]
    notes = []
    if commas:
        notes.append(
            f"answers that are numbers with a comma: {len(commas):,} ({commas[0].strip()!r}): "
            "write decimals with a point"
        )
    if long:
        notes.append(
            f"answers of over {LONG_ANSWER} characters, with no part marked as the final one: "
            f"{len(long):,}: set --answer_column, or a reward that needs none"
        )
    return notes


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


def not_evaluated(config: Config, held_out: Rows, renderer: rendering.Renderer) -> list[str]:
    """Lines on rows of the eval sets that are not used. UserError where a run would be refused."""
    if not config.eval_dataset and not len(held_out):
        return []  # a share of the rows that are looked at anyway
    _, notes = tasks.evals_of(data_options(config), renderer, held_out)
    return notes


def sampled(rows: Rows) -> Rows:
    """`LOOKED_AT` rows of a long set, in their order; all of a short one."""
    if len(rows) <= tasks.MOST_EAGER:
        return rows
    picked = np.random.RandomState(0).choice(len(rows), LOOKED_AT, replace=False)
    return PickedRows(rows, np.sort(picked))


def recognised(rows: Rows, reader: Reader) -> tuple[dict[str, int], dict[int, int], int]:
    """-> rows by their columns, rows by their turns, rows with a system prompt of their own."""
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
    return dict(columns.most_common()), dict(sorted(turns.items())), with_system


def lines(data: Description, bar: str = "█") -> list[str]:
    """The description for people."""
    sample = "" if data.looked_at == data.rows else f" (of {data.looked_at:,} rows looked at)"
    written = [
        f"{data.source}: {data.rows:,} rows" + sample,
        "splits         " + ", ".join(f"{name} {count:,}" for name, count in data.splits.items()),
        "columns        " + with_counts(data.columns),
        "turns          " + with_counts({str(turns): count for turns, count in data.turns.items()}),
        f"repeated       {data.repeated:,} rows repeat the problem of an earlier row",
        "system prompt  " + system_prompts(data),
        "",
    ]
    written[-1:-1] = [f"note           {line}" for line in data.notes]
    for number, prompt in enumerate(data.prompts, start=1):
        shown = shortened(str(prompt["answer"]))
        written += [f"--- prompt {number}, {prompt['tokens']} tokens, answer {shown!r}"]
        written += [str(prompt["prompt"])]
    written += [f"--- prompt lengths in tokens of {data.model}"]
    written += histogram(data.lengths, bar)
    written += [f"--- rows not used, with --max_prompt_tokens {data.max_prompt_tokens}"]
    written += data.not_used or ["none"]
    if min(data.lengths) > data.max_prompt_tokens:
        written += [
            "every prompt is longer, so a run would be refused: set --max_prompt_tokens "
            f"{max(data.lengths)}"
        ]
    return written


def shortened(answer: str) -> str:
    return answer if len(answer) <= LONG_ANSWER else f"{answer[:LONG_ANSWER]} ..."


def system_prompts(data: Description) -> str:
    """Which system prompts the rows get, and how many rows each."""
    common = json.dumps(data.system_prompt) if data.system_prompt else "none"
    if not data.own_system_prompts:
        return common
    if data.own_system_prompts == data.looked_at:
        return "each row's own"
    return f"{data.own_system_prompts:,} rows have their own, the others {common}"


def with_counts(counts: dict[str, int]) -> str:
    """Names with their rows; a single one without."""
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{name} ({count:,} rows)" for name, count in counts.items())


def histogram(lengths: list[int], bar: str = "█") -> list[str]:
    """A line for each of at most `BINS` bins, the middle and the longest below."""
    low, high = min(lengths), max(lengths)
    width = 1 + (high - low) // BINS
    counts = Counter((length - low) // width for length in lengths)
    rows = [
        f"{low + i * width:>7,} to {low + (i + 1) * width - 1:>7,}  {counts[i]:>7,}  "
        + bar * round(BAR * counts[i] / max(counts.values()))
        for i in range(1 + (high - low) // width)
    ]
    middle, most = np.percentile(lengths, (50, 95))
    return [*rows, f"half up to {middle:,.0f}, 95% up to {most:,.0f}, longest {high:,}"]

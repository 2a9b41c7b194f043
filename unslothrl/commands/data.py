"""`unslothrl data`: what a run would make of a data set, without a run: columns, rows as the model
reads them, lengths, rows that are not used; of a stage what is learnt of each row."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from unslothrl import rewards
from unslothrl.cluster.build import data_options
from unslothrl.config.offline_options import TABLES, OfflineOptions
from unslothrl.config.options import Config
from unslothrl.data import rendering, sources, tasks
from unslothrl.data.files import PickedRows, Rows
from unslothrl.data.formats import attempt
from unslothrl.embedded import BASES, EMBEDDED, KNOWS
from unslothrl.embedded import task as arithmetic
from unslothrl.offline import tables
from unslothrl.offline.examples import named_columns
from unslothrl.offline.resolve import resolve as resolve_stage
from unslothrl.runs.resolve import Resolved, resolve
from unslothrl.text import counted, for_terminal, plain
from unslothrl.training.trial import sentences
from unslothrl.weights import base_model

SHOWN = 5  # rows
MOST_SHOWN = 3_000  # characters of a part of a row
LOOKED_AT = 2_000  # rows of a set with more than `tasks.MOST_EAGER`
ASKED = re.compile(r"What is [1-9]\d\d [-+] [1-9]\d\d\?")  # as the embedded base knows it
DECIMAL_COMMA = re.compile(r"[-+]?\d+,(\d{1,2}|\d{4,})")  # 3,5 and 12,75, but not 1,000

Report = dict[str, Any]  # as JSON has it
Parts = list[tuple[str, str]]  # (what it is, text) of a row


def describe(command: str, flags: Mapping[str, Any], as_json: bool) -> None:
    """Prints what the data set is to a run of `command`. Raises UserError where a run would."""
    if command in TABLES:
        report = look_for_stage(resolve_stage(command, flags))
    else:
        config = resolve(flags).config
        if config.model in BASES and "max_prompt_tokens" not in flags:  # not its own, which is low
            shown = replace(config, max_prompt_tokens=Config.max_prompt_tokens)
            report, own = look(shown), config.max_prompt_tokens
            if longer := sum(length > own for length in report["lengths"]):
                report["notes"].append(
                    f"a run leaves out {counted(longer, 'row')} of these: {config.model} takes "
                    f"prompts of at most {own} tokens (--max_prompt_tokens)"
                )
        else:
            report = look(config)
    print(json.dumps(report) if as_json else for_terminal("\n".join(lines(report)), kept="\n\t"))


def lines(report: Report) -> list[str]:
    looked_at, rows, limit = report["looked_at"], report["rows"], report["limit"]
    lengths: list[int] = report["lengths"]
    middle, most = np.percentile(lengths, (50, 95))
    of_these = "" if looked_at == rows else f"; {looked_at:,} of them looked at"
    text = [f"{report['source']}: {rows:,} row{'s' * (rows != 1)} besides those held out{of_these}"]
    text += [f"{name:<19} {fact(value)}" for name, value in report["facts"].items()]
    text += [f"{'note':<19} {note}" for note in report["notes"]] + [""]
    for number, row in enumerate(report["examples"], start=1):
        text += [f"--- row {number}, {row['tokens']} tokens"]
        width = max(len(name) for name, _ in row["parts"])
        text += [  # each line after what it is, so that no text can pass for another part
            f"{name:<{width}} | {line}"
            for name, part in row["parts"]
            for line in shortened(part).split("\n")
        ]
    return [
        *text,
        f"--- lengths in tokens of {report['model']}",
        f"half up to {middle:,.0f}, 95% up to {most:,.0f}, longest {max(lengths):,}",
        f"--- rows not used, with --{limit} {report[limit]}",
        *(report["not_used"] or ["none"]),
    ]


def fact(value: Any) -> str:
    """A number, a text, or rows by what they have; of a single kind of them without the rows."""
    if isinstance(value, Mapping):
        named = [f"{name} ({count:,} rows)" for name, count in value.items()]
        return ", ".join(named) if len(value) > 1 else "".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value) or "none"


def shortened(text: str) -> str:
    left_out = len(text) - MOST_SHOWN
    return text if left_out <= 0 else f"{text[:MOST_SHOWN]} [... {left_out:,} characters more]"


def sampled(rows: Rows) -> Rows:
    """`LOOKED_AT` rows of a long set, in their order; all of a short one."""
    if len(rows) <= tasks.MOST_EAGER:
        return rows
    picked = np.random.RandomState(0).choice(len(rows), LOOKED_AT, replace=False)
    return PickedRows(rows, np.sort(picked))


def columns_of(rows: Rows, names: Callable[[Mapping[str, Any]], str]) -> dict[str, int]:
    """Rows by the columns that were recognised, of which `names` tells."""
    found: Counter[str] = Counter()
    for _, row in rendering.numbered(rows):
        name = attempt(names, row)
        found.update([name] if isinstance(name, str) else [])
    return dict(found.most_common())


# Reinforcement learning


def look(config: Config) -> Report:
    """Reads and renders the data set, or a sample of a long one. UserError where a run would."""
    tokenizer = base_model.load_tokenizer(base_model.find(config.model, weights=False))
    options, limit = data_options(config), config.max_prompt_tokens
    renderer = tasks.renderer_of(options, tokenizer)
    if config.dataset == EMBEDDED:  # it has no end
        rows: Rows = list(itertools.islice(arithmetic.problems("train", config.seed), LOOKED_AT))
        held_out: Rows = []
    else:
        rows, held_out = sources.split(options, options.reader.prompt)
    looked_at = sampled(rows)
    skipped = rendering.Skipped(source=looked_at)
    name = sources.parse(config.dataset).label
    found = list(renderer.tasks(name, rendering.numbered(looked_at), skipped))
    rendering.check_usable(f"dataset {name}", skipped, len(found), limit)
    evals, not_evaluated = tasks.evals_of(options, renderer, held_out)
    notes = []
    if config.model in BASES and config.model != config.dataset:
        notes = [KNOWS[config.model], "no reward adds its system prompt for an embedded base"]
        others = [task.problem for task in found if not ASKED.fullmatch(task.problem.strip())]
        if config.model == EMBEDDED and others:
            said = f"{len(others)} of {len(found)} problems are asked otherwise"
            notes.insert(1, f"{said}, such as {plain(others[0])[:60]!r}")
    answers = [task.answer.strip() for task in found]
    if commas := [answer for answer in answers if DECIMAL_COMMA.fullmatch(answer)]:
        said = f"answers that are numbers with a comma: {len(commas):,} ({commas[0]!r})"
        notes.append(f"{said}: write decimals with a point")
    notes += sentences(rewards.choose(config.reward), found)
    keys = sources.problem_keys(looked_at, renderer.reader.prompt)

    def names(row: Mapping[str, Any]) -> str:
        columns = renderer.reader.record(row).columns
        return f"{columns.prompt} -> {columns.answer or 'no answer'}"

    return {
        "source": config.dataset,
        "rows": len(rows),  # held-out ones left out
        "looked_at": len(looked_at),
        "facts": {
            "columns": columns_of(looked_at, names),
            "evaluated on": ", ".join(evals),
            "evaluation rows": sum(map(len, evals.values())),
            "repeated problems": len(keys) - len(np.unique(keys)),
            "added system prompt": renderer.system_prompt,  # to rows without one of their own
            "reward": " + ".join(each.name for each in rewards.choose(config.reward)),
        },
        "model": config.model,
        "limit": "max_prompt_tokens",
        "max_prompt_tokens": limit,
        "lengths": [len(task.prompt_ids) for task in found] + skipped.too_long,  # in tokens
        "notes": notes,
        "not_used": skipped.lines(limit) + not_evaluated,
        "examples": [
            {
                "tokens": len(task.prompt_ids),
                "parts": [("prompt", task.prompt), ("answer", task.answer)],
            }
            for task in found[:SHOWN]
        ],
    }


# SFT, DPO and reward models


def look_for_stage(stage: Resolved) -> Report:
    """Reads and renders the data set, or a sample of a long one. UserError where a run would."""
    options, limit = stage.options, stage.options.max_length
    base = base_model.find(options.model, weights=False)
    tokenizer = base_model.load_tokenizer(base, needs_template=False)
    writer, form = tables.writer_and_form(options, tokenizer)
    train, evaluation, name = tables.rows_of(options, form)
    looked_at = sampled(train)
    found, skipped, _ = tables.table(looked_at, options, form, writer)
    held_out, missing, _ = tables.table(sampled(evaluation), options, form, writer)
    not_used = []
    for each, kept, left_out in (
        (f"dataset {options.dataset}", found, skipped),
        (f"eval set {name}", held_out, missing),
    ):
        rendering.check_usable(each, left_out, len(kept), limit, option="max_length", what="rows")
        not_used += [f"{each}: {line}" for line in left_out.lines(limit)]
    return {
        "source": options.dataset,
        "rows": len(train),  # held-out ones left out
        "looked_at": len(looked_at),
        "facts": {
            "columns": columns_of(looked_at, names_of(options, form)),
            "evaluated on": name,
            "evaluation rows": len(evaluation),
            "trained rows": len(found),  # of those that were looked at
            "learnt tokens": sum(int(mask.sum()) for row in found for *_, mask in segments(row)),
        },
        "model": options.model,
        "limit": "max_length",
        "max_length": limit,
        "lengths": [form.length(row) for row in found] + skipped.too_long,
        "notes": list(writer.notes),
        "not_used": not_used,
        "examples": [
            {"tokens": form.length(row), "parts": parts_of(row, writer.template.decode)}
            for row in found[:SHOWN]
        ],
    }


def names_of(options: OfflineOptions, form: tables.Form) -> Callable[[Mapping[str, Any]], str]:
    """What says which columns a row is read from."""
    columns, answers = named_columns(options), 1 if form is tables.SFT else 2  # the last ones

    def names(row: Mapping[str, Any]) -> str:
        read = form.read(row, columns).columns
        return " -> ".join([*read[:-answers], ", ".join(read[-answers:])])

    return names


def segments(row: tables.TableRow) -> list[tuple[str, str, np.ndarray, np.ndarray]]:
    """A row as the model reads it, an example, or the prompt and both answers of a pair: (what is
    read of it, what is learnt of it, tokens, of each whether it is learnt). A reward model learns
    from all that it reads."""
    if "labels" in row:
        learnt = np.asarray(row["labels"]) != tables.IGNORED
        return [("read", "learnt", np.asarray(row["input_ids"]), learnt)]
    found: list[tuple[str, str, np.ndarray, np.ndarray]] = []
    if "prompt_ids" in row:
        ids = np.asarray(row["prompt_ids"])
        found.append(("prompt", "prompt", ids, np.zeros(len(ids), bool)))
    for name, mask in tables.LEARNT.items():
        learnt = np.asarray(row.get(mask, np.ones(len(row[name]))), bool)
        answer = name.removesuffix("_ids")
        found.append((f"{answer}, read", answer, np.asarray(row[name]), learnt))
    return found


def parts_of(row: tables.TableRow, decode: Callable[[list[int]], str]) -> Parts:
    """Those of a row that are learnt, and those that are only read."""
    parts = []
    for read, learnt, ids, mask in segments(row):
        edges = [0, *(np.flatnonzero(np.diff(mask)) + 1), len(ids)]
        parts += [
            (learnt if mask[begin] else read, decode(ids[begin:end].tolist()))
            for begin, end in itertools.pairwise(edges)
            if begin < end
        ]
    return parts

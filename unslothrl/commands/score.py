"""Scores a file of completions by a reward, without a model: to test a reward before a run."""

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unslothrl import rewards
from unslothrl.config.options import Config
from unslothrl.data import sources
from unslothrl.data.formats import Columns, Reader, UnusableRow, attempt, names_of
from unslothrl.data.rendering import batches, numbered
from unslothrl.errors import UserError
from unslothrl.records import Completion, Task
from unslothrl.rewards.reward import IN_LEARNER
from unslothrl.rewards.scorer import Scorable, Scorer
from unslothrl.text import for_terminal

BATCH = 2_000  # completions that are scored in one call
COMPLETION = "completion"


def score(source: str, given: Mapping[str, Any]) -> None:
    """One JSON object a row to stdout: rewards, score, the answer of the row, the one that the
    first reward read, if it is a built-in one, seconds, and why a reward failed; a summary to
    stderr, and what a custom function prints. UserError for a row that lacks its problem, what the
    reward needs, or its completion. `given`: options of a run.
    """
    options = replace(Config(), **given)
    chosen = rewards.choose(options.reward or rewards.defaults())
    if any(each.runs == IN_LEARNER for each in chosen):
        raise UserError("reward rm: a reward model needs its base, which only training loads")
    chosen = [replace(each, weight=each.weight or 1.0) for each in chosen]  # 0 would show nothing
    first = chosen[0].reward  # which grades the answer that is shown; None: the user's own
    columns = Columns(options.prompt_column, options.answer_column)
    reader = rewards.reader_of(chosen, columns)
    splits = sources.load_splits(sources.parse(source))
    rows = splits[sources.train_of(splits)]
    scorer = Scorer(
        chosen,
        deadline_s=options.reward_timeout,
        allow_unsandboxed=options.allow_unsandboxed_code,
        shows_prints=True,
    )
    kinds: dict[tuple[str, str], str] = {}  # of failures, each with its first one
    scores, sums = list[float](), Counter[str]()
    failed, seconds = 0, 0.0
    with contextlib.closing(scorer):
        scorer.check()
        for part in batches(numbered(rows), BATCH):
            made = [read(reader, row, f"dataset {source} row {number}") for number, row in part]
            started = time.perf_counter()
            scored = scorer.score(made)
            seconds += time.perf_counter() - started
            reasons = {each.candidate: each.reason for each in scored.failures}
            for i, (_, completion) in enumerate(made):
                row = {
                    "rewards": {name: values[i] for name, values in scored.rewards.items()},
                    "score": scored.scores[i],
                    "expected": made[i][0].answer,
                    **({} if first is None else {"answer": first.answer(completion.text)}),
                    "seconds": round(scored.seconds[i], 6),
                    **({"failed": reasons[i]} if i in reasons else {}),
                }
                print(json.dumps(row))
            scores += scored.scores
            sums.update({name: sum(values) for name, values in scored.rewards.items()})
            failed += len(scored.failures)
            kinds = {each.kind: str(each) for each in reversed(scored.failures)} | kinds
    count = len(scores)
    summary = (
        f"{count} completion{'s' * (count != 1)}, mean score {sum(scores) / count:.4f}, {failed} "
        f"failed, {seconds:.2f} s, {count / seconds:,.0f} a second"
    )
    if len(sums) > 1:
        summary += "; " + ", ".join(f"{name} {total / count:.4f}" for name, total in sums.items())
    print("\n".join(map(for_terminal, [*kinds.values(), summary])), file=sys.stderr)


def read(reader: Reader, row: Mapping, where: str) -> Scorable:
    """A row's completion with its task. UserError, which begins with `where`."""
    completion = row.get(COMPLETION)
    if not isinstance(completion, str):
        raise UserError(
            f"{where}: column {COMPLETION} must be text, got {completion!r:.60}; it has "
            f"{names_of(row)}: add the completions to be scored"
        )
    others = {key: value for key, value in row.items() if key != COMPLETION}
    record = attempt(reader.record, others)
    if isinstance(record, UnusableRow):
        raise UserError(f"{where}: {record}")
    said = record.problem
    columns = (record.extra, record.messages, record.read, record.asked)
    return Task(where, said, record.answer, said, (), *columns), Completion.of_text(completion)

"""Scores a file of completions by a reward, without a model: to test a reward before a run."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from unslothrl import rewards
from unslothrl.data import sources, tasks
from unslothrl.data.formats import Columns, Unusable
from unslothrl.errors import UserError
from unslothrl.rewards import answers, code
from unslothrl.rewards.scorer import Scorable, Scored, Scorer
from unslothrl.types import Completion, Task

AT_ONCE = 2_000  # completions

COMPLETION = "completion"


def score(
    source: str,
    texts: Sequence[str],
    deadline_s: float,
    *,
    columns: Columns | None = None,
    allow_unsandboxed: bool = False,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> None:
    """One JSON object a row to `out`: rewards, score, the answer that was read, seconds; a summary
    to `err`. Raises UserError for a row that lacks its problem, what the reward needs, or its
    completion.
    """
    out, err = out or sys.stdout, err or sys.stderr
    chosen = rewards.choose(tuple(texts))
    reader = tasks.reader_of(chosen, columns or Columns())
    splits = sources.load_splits(sources.parse(source))
    rows = splits[sources.train_of(splits)]
    scorer = Scorer(chosen, deadline_s=deadline_s, allow_unsandboxed=allow_unsandboxed)
    told: set[tuple[str, str]] = set()
    count = failed = 0
    total = seconds = 0.0
    try:
        scorer.check()
        for part in tasks.batches(tasks.numbered(rows), AT_ONCE):
            completed = [
                read(reader, row, f"dataset {source} row {number}") for number, row in part
            ]
            started = time.perf_counter()
            found = scorer.score(completed)
            seconds += time.perf_counter() - started
            write(found, completed, chosen[0], out)
            for failure in found.failures:
                if failure.kind not in told:
                    told.add(failure.kind)
                    print(failure, file=err)
            count, failed = count + len(completed), failed + len(found.failures)
            total += sum(found.scores)
    finally:
        scorer.close()
    print(
        f"{count} completion{'s' * (count != 1)}, mean score {total / count:.4f}, {failed} failed, "
        f"{seconds:.2f} s, {count / seconds:,.0f} a second",
        file=err,
    )


def write(found: Scored, completed: Sequence[Scorable], first: rewards.Chosen, out: TextIO) -> None:
    for i, (_, completion) in enumerate(completed):
        row = {
            "rewards": {name: values[i] for name, values in found.rewards.items()},
            "score": found.scores[i],
            "answer": READ.get(first.name, answers.tagged)(completion.text),
            "seconds": round(found.seconds[i], 6),
        }
        print(json.dumps(row), file=out)


READ = {"boxed": answers.boxed, "code": code.program}  # what a reward looks at


def read(reader: tasks.Reader, row: Mapping, where: str) -> Scorable:
    completion = row.get(COMPLETION)
    if not isinstance(completion, str):
        raise UserError(
            f"{where}: column {COMPLETION} must be text, got {completion!r:.60}; it has "
            f"{', '.join(map(str, row))}: add the completions to be scored"
        )
    try:
        record = reader.record({key: value for key, value in row.items() if key != COMPLETION})
    except Unusable as error:
        raise UserError(f"{where}: {error}") from None
    task = Task(where, record.problem, record.answer, record.problem, (), record.extra)
    return task, Completion.of_text(completion)

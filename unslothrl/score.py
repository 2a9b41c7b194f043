"""Scores a file of completions by a reward, without a model: to test a reward before a run."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from unslothrl import rewards
from unslothrl.data import formats, sources
from unslothrl.errors import UserError
from unslothrl.rewards import answers
from unslothrl.rewards.scorer import Completed, Scorer

COMPLETION = "completion"
SHOWN_FAILURES = 5


def score(
    source: str,
    texts: Sequence[str],
    deadline_s: float,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> None:
    """One JSON object a row to `out`: rewards, score, the answer that was read, seconds; a summary
    to `err`. Raises UserError for a row that lacks its problem, answer or completion.
    """
    out, err = out or sys.stdout, err or sys.stderr
    chosen = rewards.choose(tuple(texts))
    completed = [
        read(row, f"{source} row {i}")
        for i, row in enumerate(sources.read_file(Path(source).expanduser()), start=1)
    ]
    scorer = Scorer(chosen, deadline_s=deadline_s)
    started = time.perf_counter()
    try:
        found = scorer.score(completed)
    finally:
        scorer.close()
    seconds = time.perf_counter() - started
    read_answer = answers.boxed if chosen[0].name == "boxed" else answers.tagged
    for i, one in enumerate(completed):
        row = {
            "rewards": {name: values[i] for name, values in found.rewards.items()},
            "score": found.scores[i],
            "answer": read_answer(one.text),
            "seconds": round(found.seconds[i], 6),
        }
        print(json.dumps(row), file=out)
    for failure in found.failures[:SHOWN_FAILURES]:
        print(
            f"reward {failure.reward} failed ({failure.reason}) on {failure.text[:200]!r}", file=err
        )
    print(
        f"{len(completed)} completions, mean score {sum(found.scores) / len(completed):.4f}, "
        f"{len(found.failures)} failed, {seconds:.2f} s, {len(completed) / seconds:,.0f} a second",
        file=err,
    )


def read(row: dict, where: str) -> Completed:
    _, answer = formats.read_row(row, where)
    completion = row.get(COMPLETION)
    if not isinstance(completion, str):
        raise UserError(
            f"dataset {where}: column {COMPLETION} must be text, got {completion!r:.60}; it has "
            f"{', '.join(map(str, row))}: add the completions to be scored"
        )
    return Completed(completion, len(completion), answer)

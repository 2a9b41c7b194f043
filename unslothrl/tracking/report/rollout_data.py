"""The rollouts that a report shows, as data for its script.

All steps of a short run; of a longer one the newest `MOST_STEPS // 4` and others over the whole
run, evenly spaced. A step has at most `MOST_COMPLETIONS` completions, and all of them together
`MOST_BYTES`, so that the page can be sent: of a larger step some prompts are shown, and long texts
are cut in the middle.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from unslothrl.data.formats import boxed, tagged
from unslothrl.tracking.metrics import MOST_COMPLETIONS, chosen_groups, is_number
from unslothrl.tracking.rows import json_text, read_jsonl
from unslothrl.tracking.run_folder import EVALS, ROLLOUTS, TOKENS, RunFolder

MOST_STEPS, MOST_EVALUATIONS = 60, 20
MOST_BYTES = 4_000_000
MOST_BYTES_OF_STEP = 400_000
# Every so many prompts, characters of a text, tokens of a completion: the first that keep to a
# step's bytes.
LENGTHS = (
    (1, 6000, 1000), (2, 6000, 1000), (2, 3000, 300), (4, 3000, 300), (4, 1500, 100), (8, 800, 0),
    (8, 100, 0), (8, 0, 0),
)  # fmt: skip
LONGEST_NAME = 200  # characters of a task's id, an answer
MOST_TURNS, MOST_CALLS = 12, 4  # of an episode, of a turn
KEPT = ("candidate", "score", "finish_reason", "advantage", "selected", "tokens")
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)

ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))

Rows = Sequence[Mapping[str, Any]]


def browser_data(folder: RunFolder) -> dict[str, list[dict[str, Any]]]:
    """What the page's script shows: "steps" and "evals", ascending, each with its prompts.
    ValueError, KeyError or TypeError where a file is not what a run writes."""
    traced = set(folder.steps_of(TOKENS))
    steps = spread(folder.steps_of(ROLLOUTS), MOST_STEPS, traced)
    evals = spread(sorted((folder.path / EVALS).glob("*.jsonl")), MOST_EVALUATIONS)
    most = min(MOST_BYTES_OF_STEP, MOST_BYTES // max(1, len(steps) + len(evals)))
    return {
        "steps": [
            shown(folder.step_file(ROLLOUTS, s), str(s), folder.step_file(TOKENS, s), most)
            for s in steps
        ],
        "evals": [shown(path, path.stem.removeprefix("step_"), None, most) for path in evals],
    }


def spread(values: Sequence[Any], most: int, preferred: Iterable[Any] = ()) -> list[Any]:
    """At most `most` of `values`: the last quarter of that number, and of those before them, or of
    those `preferred`, some evenly spaced."""
    if len(values) <= most:
        return list(values)
    last = most // 4
    wanted = set(preferred)
    before = [v for v in values[:-last] if v in wanted] or values[:-last]
    count = min(most - last, len(before))
    places = np.linspace(0, len(before) - 1, count).astype(int)
    return [*(before[place] for place in places), *values[-last:]]


def shown(path: Path, name: str, traced: Path | None, most: int) -> dict[str, Any]:
    """A step or an evaluation in at most `most` bytes, as far as its names allow."""
    rows = read_jsonl(path)
    tokens = {row["row"]: row for row in read_jsonl(traced)} if traced else {}
    groups = grouped([{**row, "traced": tokens.get(i)} for i, row in enumerate(rows)])
    asked = questions([group[0]["prompt"] for group in groups])
    places = chosen_groups([len(group) for group in groups])
    for every, *length in LENGTHS:
        chosen = [(groups[at][:MOST_COMPLETIONS], asked[at]) for at in places[::every]]
        prompts = [prompt(group, question, *length) for group, question in chosen]
        if len(json_text(prompts, ENCODER)) <= most:
            break
    return {
        "name": name,
        "file": f"{path.parent.name}/{path.name}",
        "completions": len(rows),
        "shown": sum(len(group) for group, _ in chosen),
        "traced": bool(tokens),
        "prompts": prompts,
    }


def grouped(rows: Rows) -> list[list[Mapping[str, Any]]]:
    """The rows of each prompt: its candidates come one after the other, from number 0."""
    groups: list[list[Mapping[str, Any]]] = []
    for row in rows:
        if row["candidate"] == 0 or not groups:
            groups.append([])
        groups[-1].append(row)
    return groups


def questions(prompts: Sequence[str]) -> list[str]:
    """The prompts without the lines and tags that all of them have around: a template."""
    begin = re.match(r"(?s)(.*[\n>\]])?", os.path.commonprefix(prompts))  # noqa: RUF071
    turned = os.path.commonprefix([each[::-1] for each in prompts])  # noqa: RUF071
    end = re.match(r"(?s)(.*[\n<\[])?", turned)
    skipped, left = begin.end() if begin else 0, end.end() if end else 0
    return [each[skipped : len(each) - left].strip() or each.strip() for each in prompts]


def answer_of(text: str) -> str | None:
    """What the rewards of the package take as a completion's answer; None without one."""
    answer = tagged(text)
    return boxed(text) if answer is None else answer


def prompt(group: Rows, question: str, most: int, most_tokens: int) -> dict[str, Any]:
    first = group[0]
    name = ": ".join(filter(None, [title_of(first), str(first["task"])]))
    return {
        "name": visible(name[:LONGEST_NAME]),
        "question": cut(question, 2 * LONGEST_NAME),
        "answer": cut(str(first.get("answer", "")), LONGEST_NAME),
        "prompt": cut(first["prompt"], most),
        "candidates": [candidate(row, most, most_tokens) for row in group],
    }


def candidate(row: Mapping[str, Any], most: int, most_tokens: int) -> dict[str, Any]:
    """A completion, or the turns of an episode, and what is known of it."""
    found = {key: row[key] for key in KEPT if key in row}
    found["rewards"] = {visible(name): value for name, value in row["rewards"].items()}
    if "lost" in row:
        found["lost"] = cut(row["lost"], LONGEST_NAME)
    if turns := row.get("turns"):
        shown = [*turns[: MOST_TURNS - 1], turns[-1]] if len(turns) > MOST_TURNS else turns
        found["turns"] = [turn_of(each, most // (2 * len(shown))) for each in shown]
        found["turns_left_out"] = len(turns) - len(shown)
    else:
        found["completion"] = cut(row["completion"], most)
        if (answer := answer_of(row["completion"])) is not None:
            found["answer"] = cut(answer, LONGEST_NAME)
    if (tokens := row.get("traced")) and most_tokens:
        known = {k: v[:most_tokens] for k, v in tokens.items() if isinstance(v, list)}
        more = len(tokens["pieces"]) - len(known["pieces"])
        known["pieces"] = list(map(visible, known["pieces"]))
        found["traced"] = {**known, "left_out": tokens["left_out"] + more}
    return found


def turn_of(turn: Mapping[str, Any], most: int) -> dict[str, Any]:
    calls = turn.get("tool_calls", ())[:MOST_CALLS]  # an older version has none
    return {
        **{key: turn[key] for key in ("reward", "calls", "failed_calls")},
        "reply": cut(turn["reply"], most),
        "observation": cut(turn["observation"], most),
        "tool_calls": [{key: cut(text, most) for key, text in call.items()} for call in calls],
    }


def title_of(row: Mapping[str, Any]) -> str:
    """Set and policy of a row of an evaluation; "" of a rollout."""
    return ", ".join(str(row[key]) for key in ("set", "policy") if key in row)


def cut(text: str, most: int) -> list[Any]:
    """[text], or [its beginning, the number of characters left out, its end]."""
    if len(text) <= most:
        return [visible(text)]
    end = most // 4
    return [visible(text[: most - end]), len(text) - most, visible(text[len(text) - end :])]


def visible(text: str) -> str:
    """With pictures of control characters, and numbers of others that hide or move text."""
    return HIDDEN.sub(picture, text)


def picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 32 else f"⟨{code:04x}⟩"


# Evaluations, of which each problem's scores are compared

Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""Set -> problem -> the scores of its completions."""


@lru_cache(maxsize=1 << 12)  # a run writes its page often
def evaluation_scores(path: Path, changed: int) -> Scores:
    """What an evaluation found, of a file as it was at the time `changed`."""
    return {
        name: {
            problem: [row["score"] if is_number(row["score"]) else 0.0 for row in group]
            for problem, group in problems.items()
        }
        for name, problems in problems_of(path).items()
    }


def problems_of(path: Path) -> dict[str, dict[str, Rows]]:
    """The rows of an evaluation by set and problem. Another run may have held out other problems
    under the same tasks: so a problem is called by its answer as well, or where it has none by its
    prompt."""
    found: dict[str, dict[str, Rows]] = {}
    for group in grouped(read_jsonl(path)):
        row = group[0]
        problems = found.setdefault(title_of(row), {})
        key = f"{row['task']}: {row.get('answer') or row['prompt']}"
        while key in problems:
            key += "'"
        problems[key] = group
    return found

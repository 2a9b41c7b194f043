"""Files of JSON lines, and what the folder of a run records in them: a row for each completion.

A killed process may leave a file without the end of its last line, which is then ignored.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unslothrl.records import FROM_THE_ENVIRONMENT, Group
from unslothrl.text import shown


def read_jsonl(
    path: Path, left_out: Callable[[str], None] | None = None, needs_step: bool = False
) -> list[dict[str, Any]]:
    """All whole lines of a file, [] if there is none. ValueError for a line that is no object, or
    lacks the step that it needs; with `left_out`, which gets what is wrong, it is left out."""
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                problem = "" if isinstance(row, dict) else "is no object"
                if needs_step and not problem and type(row.get("step")) is not int:
                    problem = "has no step"
            except (ValueError, RecursionError) as error:
                problem = f"is not JSON: {shown(str(error), 200)[1:-1]}"
            if not problem:
                rows.append(row)
            elif left_out is None:
                raise ValueError(f"{path}, line {number} {problem}")
            else:
                left_out(f"{path}, line {number} {problem}")
    return rows


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """`value` in JSON's types. NaN and infinity, which JSON lacks, become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy's
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def json_text(value: Any, encoder: json.JSONEncoder = ENCODER) -> str:
    try:  # most values are plain already
        return encoder.encode(value)
    except (TypeError, ValueError):
        return encoder.encode(plain(value))


def json_line(row: Mapping[str, Any]) -> bytes:
    return encoded(json_text(row)) + b"\n"


def encoded(text: str) -> bytes:
    """JSON as UTF-8. Half a surrogate pair, which UTF-8 lacks, becomes its JSON escape."""
    return text.encode("utf-8", "backslashreplace")


def rollout_rows(groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    for group in groups:
        advantages = group.advantages or (0.0,) * len(group.completions)
        for index, completion in enumerate(group.completions):
            yield row_of(
                group,
                index,
                advantage=advantages[index],
                selected=index in group.chosen,
                policy_version=completion.policy_version,
            )


def evaluation_rows(drawn: Mapping[str, Sequence[Group]], **more: Any) -> Iterator[dict[str, Any]]:
    """One row per candidate of an evaluation, by set; each with `more`."""
    for name, groups in drawn.items():
        for group in groups:
            for index, completion in enumerate(group.completions):
                tokens = sum(completion.version_counts.values())
                yield {**more, "set": name, **row_of(group, index, tokens=tokens)}


def row_of(group: Group, index: int, **more: Any) -> dict[str, Any]:
    """A candidate and its problem, with `more`. The prompt is what the policy read first: the
    task's, or what its environment gave. Of an episode with an environment also its turns, and why
    it is lost if it is."""
    task, completion = group.task, group.completions[index]
    transcript = completion.transcript
    row = {
        "task": task.id,
        "candidate": index,
        "prompt": (transcript.prompt if transcript is not None else "") or task.prompt,
        "answer": task.answer,
        "completion": completion.text,
        "finish_reason": completion.finish_reason,
        "rewards": {name: rewards[index] for name, rewards in group.rewards.items()},
        "score": group.scores[index],
        **more,
    }
    if transcript is not None:
        row["turns"] = [asdict(turn) for turn in transcript.turns]
        if completion.is_lost:
            of_it = (f for f in group.failures if f.candidate == index)
            reasons = (f.reason for f in of_it if f.reward == FROM_THE_ENVIRONMENT)
            row["lost"] = next(reasons, "")
    return row

"""Groups that were drawn ahead and not trained on yet (`--max_staleness`), as a checkpoint has
them: one JSON object a line."""

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unslothrl.turn import Call, Turn
from unslothrl.types import Completion, Failure, Group, Task, Transcript

ENDS = ("stop", "length", "abort", "lost")
TEXTS = ("finish_reason", "text", "generator")
WRONG = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True)
class Ahead:
    """A group that is complete. Its task follows from its position in the data."""

    position: int
    attempt: int  # how often it was too old before
    group: Group

    def of(self, task: Task) -> Group:
        """The group of that task, which is the one of before."""
        group = self.group
        return Group(task, group.completions, group.rewards, group.scores, group.failures)


UNKNOWN = Task("", "", "", "", ())  # until the data is there


def to_jsonl(groups: Iterable[Ahead]) -> bytes:
    """Tokens, log-probabilities to the last bit, versions and rewards; no tasks."""
    rows = [
        {
            "position": each.position,
            "attempt": each.attempt,
            "completions": [_completion_row(one) for one in each.group.completions],
            "rewards": each.group.rewards,
            "scores": each.group.scores,
            "failures": [asdict(failure) for failure in each.group.failures],
        }
        for each in groups
    ]
    return b"".join(json.dumps(row, allow_nan=False).encode("ascii") + b"\n" for row in rows)


def _completion_row(completion: Completion) -> dict[str, Any]:
    return {
        "token_ids": completion.token_ids.tolist(),
        "logprobs": completion.logprobs.tolist(),
        "sampled": _runs(completion.sampled),
        "versions": _runs(completion.versions),
        "finish_reason": completion.finish_reason,
        "text": completion.text,
        "generator": completion.generator,
        "transcript": _transcript_row(completion.transcript),
    }


def _transcript_row(transcript: Transcript | None) -> dict[str, Any] | None:
    if transcript is None:
        return None
    return {
        "turns": [asdict(turn) for turn in transcript.turns],
        "prompt": transcript.prompt,
        "question": transcript.question,
        "prompt_ids": transcript.prompt_ids,
        "earlier": [[ids, _completion_row(each)] for ids, each in transcript.earlier],
    }


def from_jsonl(content: bytes) -> tuple[Ahead, ...]:
    """Raises ValueError for anything but what `to_jsonl` writes."""
    groups = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            groups.append(_group(json.loads(line)))
        except WRONG as error:
            raise ValueError(f"line {number} is not a group of completions") from error
    return tuple(groups)


def _group(row: dict[str, Any]) -> Ahead:
    completions = tuple(map(_completion, row["completions"]))
    count = len(completions)
    rewards = {name: _numbers(values, count) for name, values in row["rewards"].items()}
    failures = tuple(Failure(**_fields(Failure, each)) for each in row["failures"])
    if not count or not rewards or any(not 0 <= each.candidate < count for each in failures):
        raise ValueError("incomplete")
    (position, attempt) = _whole([row["position"], row["attempt"]])
    scores = _numbers(row["scores"], count)
    return Ahead(position, attempt, Group(UNKNOWN, completions, rewards, scores, failures))


def _completion(row: dict[str, Any]) -> Completion:
    token_ids = _whole(row["token_ids"])
    count = len(token_ids)
    sampled, versions = (_repeated(row[name], count) for name in ("sampled", "versions"))
    texts = _fields(Completion, {name: row[name] for name in TEXTS})
    if texts["finish_reason"] not in ENDS or {type(each) for each in sampled} - {bool}:
        raise ValueError("not as it is written")
    logprobs = _numbers(row["logprobs"], count)
    transcript = _transcript(row.get("transcript"))
    columns = map(np.array, (token_ids, logprobs, sampled, _whole(versions)))
    return Completion(*columns, **texts, transcript=transcript)


def _transcript(row: dict[str, Any] | None) -> Transcript | None:
    if row is None:
        return None
    own, earlier = row["prompt_ids"], row["earlier"]
    texts = {"prompt": row["prompt"], "question": row.get("question", "")}  # an older one has none
    return Transcript(
        tuple(map(_turn, row["turns"])),
        **_fields(Transcript, texts),
        prompt_ids=None if own is None else _whole(own),
        earlier=tuple((_whole(ids), _completion(each)) for ids, each in earlier),
    )


def _turn(row: dict[str, Any]) -> Turn:
    calls = tuple(Call(**_fields(Call, call)) for call in row.get("tool_calls", ()))
    others = {name: value for name, value in row.items() if name != "tool_calls"}
    others["reward"] = _numbers([row["reward"]], 1)[0]
    return Turn(**_fields(Turn, others), tool_calls=calls)


def _fields(kind: type, row: dict[str, Any]) -> dict[str, Any]:
    """`row` if each value has the type of the field of `kind` with its name."""
    kinds = kind.__annotations__
    if any(type(value) is not kinds[name] for name, value in row.items()):
        raise ValueError("of another type")
    return row


def _whole(values: Iterable[Any]) -> tuple[int, ...]:
    if any(type(value) is not int or not 0 <= value < 2**31 for value in values):
        raise ValueError("not a whole number")
    return tuple(values)


def _numbers(values: list[Any], count: int) -> tuple[float, ...]:
    """`count` finite ones."""
    if len(values) != count or any(type(value) not in (int, float) for value in values):
        raise ValueError("not numbers")
    if not all(map(math.isfinite, values)):
        raise ValueError("not finite")
    return tuple(map(float, values))


def _runs(values: np.ndarray) -> list[tuple[Any, int]]:
    """[7, 7, 7, 9] -> [(7, 3), (9, 1)]"""
    return [(value, len(list(same))) for value, same in itertools.groupby(values.tolist())]


def _repeated(runs: list[Any], count: int) -> tuple[Any, ...]:
    """`count` values, from pairs of a value and how often it comes in a row."""
    times = _whole([each for _, each in runs])
    if sum(times) != count:
        raise ValueError("of another length")
    return tuple(value for value, each in runs for _ in range(each))

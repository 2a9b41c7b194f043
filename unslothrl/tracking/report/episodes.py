"""An episode with an environment as a script hands it to the browser."""

from collections.abc import Mapping, Sequence
from typing import Any

MOST_TURNS, MOST_CALLS = 12, 4  # that a script has, of an episode and of each turn
MOST_ARGUMENTS = 200  # characters of a call's
LEAST_NAME = 20  # characters of its name

Turns = Sequence[Mapping[str, Any]]  # of `rows.turns_of`


def shown(turns: Turns, most: int) -> dict[str, Any]:
    """The turns for a script, all their texts together cut to about `most` characters; the last one
    is always there."""
    chosen = list(turns) if len(turns) <= MOST_TURNS else [*turns[: MOST_TURNS - 1], turns[-1]]
    each = most // max(1, 2 * len(chosen))
    found: dict[str, Any] = {"turns": [of_turn(one, each) for one in chosen]}
    if len(chosen) < len(turns):
        found["turns_left_out"] = len(turns) - len(chosen)
    return found


def of_turn(row: Mapping[str, Any], most: int) -> dict[str, Any]:
    found = {
        "text": cut_text(row["reply"], most),
        "said": cut_text(row["observation"], most),
        "reward": row["reward"],
    }
    calls = row.get("tool_calls", ())  # an older version has none
    if calls:
        found["calls"] = [of_call(one, most) for one in calls[:MOST_CALLS]]
        found["calls_left_out"] = max(0, len(calls) - MOST_CALLS)
    if row["failed_calls"]:
        found["failed"] = row["failed_calls"]
    return found


def of_call(row: Mapping[str, Any], most: int) -> list[Any]:
    """[name, arguments, why they cannot be read]"""
    name = cut_text(row["name"], max(LEAST_NAME, min(most, MOST_ARGUMENTS)))
    return [
        name,
        *(cut_text(row[key], min(most, MOST_ARGUMENTS)) for key in ("arguments", "error")),
    ]


def cut_text(text: str, most: int) -> list[Any]:
    """[text], or [its beginning, the number of characters left out, its end]."""
    if len(text) <= most:
        return [text]
    end = most // 4
    return [text[: most - end], len(text) - most, text[len(text) - end :]]

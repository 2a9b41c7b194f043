"""The reward for JSON: the completion's object, or other value, equals the reference answer's."""

import json
import re
from decimal import Decimal
from typing import Any

from unslothrl.rewards.reward import Reward

PROMPT = "Answer with the JSON that is asked for, and nothing else."
_FENCED = re.compile(r"```\w*[ \t\r]*\n(.*?)```", re.DOTALL)


def answer_of(completion: str) -> str:
    """What stands after a `</think>`: its last fenced block, else all of it."""
    rest = completion.rpartition("</think>")[2]
    fenced = _FENCED.findall(rest)
    return (fenced[-1] if fenced else rest).strip()


def equal(completion: str, *golds: str) -> float:
    """1 if the completion's JSON has the value of a gold answer: keys in any order, 4.0 is 4, and
    neither true nor "4" is a number. ValueError for a gold answer that is no JSON."""
    right = [value_of(gold) for gold in golds]
    try:
        found = value_of(answer_of(completion))
    except (ValueError, RecursionError, ArithmeticError):  # of Decimal, where an exponent is huge
        return 0.0
    return float(found in right)


def value_of(text: str) -> Any:
    """The value of a JSON text, comparable with ==. Raises ValueError."""
    return json.loads(
        text, parse_int=number, parse_float=number, parse_constant=number, object_pairs_hook=once
    )


def number(text: str) -> tuple[Decimal]:
    """A number, in a form that equals no other JSON value. ValueError for NaN and infinities."""
    if text[-1].isalpha():
        raise ValueError(f"{text} is no JSON")
    return (Decimal(text),)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. ValueError where it has a key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


REWARD = Reward(equal, needs_answer=True, prompt=PROMPT, answer=answer_of)

"""The countdown game: an equation from given numbers that equals a target, computed exactly.

The answer (between the last `<answer>` tags) uses each number exactly once. A minus sign turns a
number or a parenthesis around where it stands first, as in "-(19 - 44) + 35"; after another sign it
must belong to a given negative number, as in "5 - -3".
"""

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from unslothrl.data.formats import UnusableRow, parsed, tagged, value_of
from unslothrl.rewards.reward import Reward, missing

NUMBERS = ("numbers", "nums")
PROBLEM = (
    "Using the numbers {numbers}, write an equation that equals {target}. Use each number exactly "
    "once, and only +, -, *, / and parentheses."
)
LONGEST = 500  # characters of an equation
SIGNS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}
_ALPHABET = re.compile(r"[0-9\s+\-*/()]+")
_SIGN_AFTER_SIGN = re.compile(r"[-+*/]\s*[-+]\s*(\d*)")
_VALUE = re.compile(r"\s*(-?\d+)\s*")
_WHOLE = re.compile(r"\s*([-+]?\d{1,40})(?:\.0*)?\s*")


def solves(completion: str, numbers: Sequence[int], target: int) -> float:
    """1 if the answer uses exactly `numbers` and equals `target`, else 0."""
    answer = tagged(completion)
    if answer is None or len(answer) > LONGEST:
        return 0.0
    formula, equals, rest = answer.partition("=")
    stated = _VALUE.fullmatch(rest)
    if equals and (stated is None or int(stated[1]) != target):
        return 0.0
    if not _ALPHABET.fullmatch(formula) or not signs_belong(formula, numbers):
        return 0.0
    used: list[tuple[int, bool]] = []
    try:
        value = evaluate(ast.parse(formula.strip(), mode="eval").body, used)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return 0.0
    return float(value == target and uses_each_once(used, numbers))


def signs_belong(formula: str, numbers: Sequence[int]) -> bool:
    """Whether a sign right after another one is that of a given negative number."""
    return all(
        digits != "" and -int(digits) in numbers and int(digits) > 0
        for digits in _SIGN_AFTER_SIGN.findall(formula)
    )


def evaluate(node: ast.AST, used: list[tuple[int, bool]]) -> Fraction:
    """The value of an equation; the numbers it has are added to `used`, with whether a minus sign
    stands right before them. ValueError."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append((node.value, False))
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -evaluate(node.operand, used)
        if isinstance(node.operand, ast.Constant):
            used.append((used.pop()[0], True))
        return value
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        return SIGNS[type(node.op)](evaluate(node.left, used), evaluate(node.right, used))
    raise ValueError("not a sum of numbers")


def uses_each_once(used: Sequence[tuple[int, bool]], numbers: Sequence[int]) -> bool:
    """ "-3" is the given -3, or the given 3 turned around; "3" is the given 3."""
    given = Counter(numbers)
    plain = Counter(number for number, minus in used if not minus)
    all_used = Counter(number for number, _ in used)
    sizes = Counter(abs(number) for number in numbers)
    return all_used == sizes and all(plain[number] <= given[number] for number in plain)


def read(row: Mapping) -> dict[str, Any]:
    """-> {"numbers": [...], "target": ...}. Raises UnusableRow where the row has no such game."""
    place = row if "target" in row else parsed(row.get("extra_info"))
    if not isinstance(place, Mapping) or "target" not in place:
        place = parsed(value_of(row, "reward_model.ground_truth"))
    if not isinstance(place, Mapping) or "target" not in place:
        raise missing("no numbers and target", NUMBERS)
    numbers = next((parsed(place[name]) for name in NUMBERS if name in place), None)
    values = [whole(value) for value in numbers] if isinstance(numbers, list) else []
    target = whole(place["target"])
    if not values or target is None or None in values:
        raise UnusableRow("a countdown game needs numbers, a list of whole numbers, and a target")
    return {"numbers": values, "target": target}


def whole(value: Any) -> int | None:
    """A number or its text as a whole number, None for what is none."""
    found = _WHOLE.fullmatch(str(value))
    return int(found[1]) if found else None


def problem(row: Mapping) -> str | None:
    """The game in words; None where the row has none in its columns."""
    numbers = [row[name] for name in NUMBERS if name in row]
    if "target" not in row or not numbers:
        return None
    return PROBLEM.format(numbers=numbers[0], target=row["target"])


REWARD = Reward(solves, columns=("numbers", "target"), read=read, problem=problem)

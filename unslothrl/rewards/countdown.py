"""The countdown game: an equation from given numbers that equals a target.

The answer (between the last `<answer>` tags) may use each number exactly once, with + - * / and
parentheses, and nothing else. A minus sign turns a number or a parenthesis around where it stands
first, as in "-(19 - 44) + 35"; after another sign it must belong to a given negative number, as in
"5 - -3". An equals sign may follow, and the target. Computed exactly.
"""

import ast
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from unslothrl.rewards.answers import tagged

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


def solves(completion: str, numbers: Sequence[int], target: int) -> float:
    """1 if the answer uses exactly `numbers` and equals `target`, else 0."""
    found = tagged(completion)
    if found is None or len(found) > LONGEST:
        return 0.0
    formula, equals, rest = found.partition("=")
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

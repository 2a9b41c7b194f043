"""The countdown game: an equation from given numbers that equals a target.

The answer (between the last `<answer>` tags) may use each number exactly once, with + - * / and
parentheses, and nothing else; what stands after an equals sign is passed over. Computed exactly.
"""

import ast
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


def solves(completion: str, numbers: Sequence[int], target: int) -> float:
    """1 if the answer uses exactly `numbers` and equals `target`, else 0."""
    found = tagged(completion)
    if found is None or len(found) > LONGEST:
        return 0.0
    used: list[int] = []
    try:
        value = evaluate(ast.parse(found.partition("=")[0].strip(), mode="eval").body, used)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return 0.0
    return float(value == target and sorted(used) == sorted(numbers))


def evaluate(node: ast.AST, used: list[int]) -> Fraction:
    """The value of an equation; the numbers it has are added to `used`. ValueError."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -evaluate(node.operand, used)
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        return SIGNS[type(node.op)](evaluate(node.left, used), evaluate(node.right, used))
    raise ValueError("not a sum of numbers")

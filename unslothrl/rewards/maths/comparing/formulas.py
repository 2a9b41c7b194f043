"""Whether two formulas are the same as they are written, and whether two equations say the same."""

import math
from fractions import Fraction

from unslothrl.rewards.maths.comparing.texts import same_text
from unslothrl.rewards.maths.expressions import equality
from unslothrl.rewards.maths.expressions.rational import rational
from unslothrl.rewards.maths.expressions.tree import MINUS_ONE, Tree, add, mul, negative
from unslothrl.rewards.maths.kinds import Answer, Text, Value


def literally(a: Answer, b: Answer) -> bool:
    """The same formula in any order of terms and factors, and of numbers in any notation."""
    if isinstance(a, Value) and isinstance(b, Value):
        return a.unit == b.unit and folded(a.tree) == folded(b.tree)
    if isinstance(a, Text) and isinstance(b, Text):
        return same_text(a, b)
    return a == b


def folded(tree: Tree) -> Tree:
    """With "3/2" as the number that it is; "1 + 1" and "8 \\cdot 9" stay."""
    if tree[0] in ("number", "symbol"):
        return tree
    head = 2 if tree[0] == "call" else 1
    parts = [folded(part) for part in tree[head:]]
    if tree[0] == "add":
        return add(*parts)
    if tree[0] == "mul" and is_fraction(tree):
        return ("number", rational(tree, {}))
    return mul(*parts) if tree[0] == "mul" else (*tree[:head], *parts)


def is_fraction(tree: Tree) -> bool:
    """ "-3", "3/2" in lowest terms; not "2 * 3" or "6/3"."""
    factors = [factor for factor in tree[1:] if factor != MINUS_ONE]
    tops = [factor[1] for factor in factors if factor[0] == "number"]
    bottoms = [
        factor[1][1] for factor in factors if factor[0] == "pow" and factor[1][0] == "number"
    ]
    if len(tops) + len(bottoms) != len(factors) or len(tops) > 1 or len(bottoms) > 1:
        return False
    if any(factor[0] == "pow" and factor[2] != MINUS_ONE for factor in factors) or not all(bottoms):
        return False
    top, bottom = (tops or [Fraction(1)])[0], (bottoms or [Fraction(1)])[0]
    return top.denominator == bottom.denominator == math.gcd(int(top), int(bottom)) == 1


def plain_tree(side: Answer) -> Tree | None:
    """The tree of a value without a unit."""
    return side.tree if isinstance(side, Value) and not side.unit else None


def same_equation(
    answer: tuple[Tree, Tree], gold: tuple[Tree, Tree], sign: str, imaginary: bool
) -> bool:
    """Whether a = b (or <, <=) says the same as c = d: the differences of their sides are
    proportional, and not constant, or else anything true would be any other truth."""
    difference, expected = (add(left, negative(right)) for left, right in (answer, gold))
    factor = equality.ratio(difference, expected, imaginary)
    if factor is None or not varies(expected, imaginary):
        return False
    if sign in ("=", "ne"):
        return True
    return not isinstance(factor, complex) and factor > 0


def varies(tree: Tree, imaginary: bool) -> bool:
    """Whether an expression takes different values."""
    if not equality.variables(tree, imaginary=imaginary):
        return False
    return equality.ratio(tree, ("number", Fraction(1)), imaginary) is None

"""The points at which expressions with variables are compared."""

import functools
import random
from fractions import Fraction

from unslothrl.rewards.maths.expressions.rational import Point, rational
from unslothrl.rewards.maths.expressions.tree import Tree, symbols

POINTS = 16
MOST_CONSTANTS = 6  # at which formulas with branches are compared besides
_SCALES = [10, 10**2, 10**3, 10**4, 10**8, 10**16, 10**32, 10**64, 10**128]
_BRANCHING = {"abs", "floor", "ceil", "max", "min"}


@functools.lru_cache(maxsize=4096)
def coordinate(name: str, point: int) -> Fraction:
    """Of the variable, at the numbered point. Every fourth is whole; the denominator of the others
    is even, so that (-1)^n has no value there."""
    draw = random.Random(f"{name} {point}")
    if point % 4 == 3:
        return Fraction(draw.randrange(2, 12 + point))
    value = Fraction(draw.randrange(1, 1 << 17, 2), 1 << 17) * (1, 3, 41)[point % 3]
    return -value if point % 4 == 2 else value


def at_point(names: frozenset[str], point: int) -> Point:
    return {name: coordinate(name, point) for name in names}


def has_branches(tree: Tree) -> bool:
    """Whether it may be given by one formula here and by another one there, as |x| is."""
    if tree[0] == "call" and tree[1] in _BRANCHING and symbols(tree):
        return True
    is_whole = tree[0] == "pow" and tree[2][0] == "number" and tree[2][1].denominator == 1
    if tree[0] == "pow" and symbols(tree[1]) and not is_whole:
        return True
    return any(has_branches(part) for part in tree[1:] if isinstance(part, tuple))


def constants(tree: Tree) -> frozenset[Fraction]:
    """The sizes of the rational numbers in a tree: in x - 10^6 that of the power as well."""
    inside = frozenset().union(*(constants(part) for part in tree[1:] if isinstance(part, tuple)))
    try:
        return inside | {abs(rational(tree, {}))}
    except ArithmeticError:
        return inside


def branch_points(names: frozenset[str], numbers: frozenset[Fraction]) -> list[Point]:
    """Up to 3 * POINTS more for formulas with branches: at and beyond the numbers in them, and,
    since one may begin anywhere, at every scale."""
    largest = sorted((value for value in numbers if value < 1 << 64), reverse=True)[:MOST_CONSTANTS]
    near = [dict.fromkeys(names, by * value) for value in largest for by in (1, -1, 3)]
    return near + [
        {name: scale * value for name, value in at_point(names, point).items()}
        for scale in _SCALES
        for point in (1, 2, 3)  # near to, below and above 0
    ]

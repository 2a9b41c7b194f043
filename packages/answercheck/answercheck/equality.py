"""Whether two expressions are equal, without rounding.

Values that are fractions are compared as such. Others are computed to many digits: a difference
that is far above the error of the last digit refuses; agreement is only accepted when the digits
outnumber by far the size of anything that occurs in the two expressions, so that
`\\sqrt2 + 10^{-400}` is not `\\sqrt2`. With variables this is repeated at random rational points,
positive, negative and whole (Schwartz 1980, doi 10.1145/322217.322225: a polynomial that is not
zero is zero at few of them). `imaginary`: i squared is -1, and i is no variable.
"""

from collections.abc import Sequence
from fractions import Fraction

from answercheck.trees import Tree, divided, mul, number, replaced, subtrees, symbols
from answercheck.values import (
    FIRST_PRECISION,
    MAX_PRECISION,
    Point,
    Undefined,
    coordinate,
    differ,
    evaluated,
    exact,
    rounded,
)

MAX_POINT_PRECISION = 3_000  # bits, at points of expressions with variables
POINT_PRECISION, CONSTANT_PRECISION = 192, 640  # bits
POINTS = 16
ZERO = number(0)
LEAST_POINTS = 4  # at which two expressions must both be defined
MOST_CONSTANTS = 6  # at which formulas with branches are compared besides
_SCALES = [10, 10**2, 10**3, 10**4, 10**8, 10**16, 10**32, 10**64, 10**128]
_BRANCHING = {"abs", "floor", "ceil", "max", "min"}


def equal(a: Tree, b: Tree, imaginary: bool = False) -> bool:
    """Whether two expressions are equal wherever both are defined: as real numbers, or as complex
    ones where i may occur or `b` has no real value."""
    if a == b:
        return True
    names = variables(a, b, imaginary=imaginary)
    points = points_of(names, a, b)
    both = None if imaginary else agreement(a, b, points, real=True)
    return agreement(a, b, points, real=False) is True if both is None else both


def variables(*trees: Tree, imaginary: bool = False) -> frozenset[str]:
    names = frozenset().union(*map(symbols, trees)) - {"\\pi", "e"}
    return names - {"i"} if imaginary else names


def agreement(a: Tree, b: Tree, points: Sequence[Point], real: bool) -> bool | None:
    """None where `b` is defined at too few points."""
    least = min(LEAST_POINTS, len(points))
    defined, shared = 0, 0
    for where in points:
        same = equal_at(a, b, where, real)
        if same is False:
            return False
        shared += same is True
        defined += same is True or is_defined(b, where, real)
    if shared < least:
        return None if defined < least else False
    return 4 * shared >= defined


def points_of(names: frozenset[str], *trees: Tree) -> list[Point]:
    """Where expressions are compared. With branches also at and beyond the numbers that occur in
    them and, since a branch may begin anywhere, at every scale."""
    if not names:
        return [{}]
    points = [at_point(names, point) for point in range(POINTS)]
    if not any(map(has_branches, trees)):
        return points
    numbers = {value for tree in trees for value in constants(tree) if value < 1 << 64}
    for value in sorted(numbers, reverse=True)[:MOST_CONSTANTS]:
        points += [dict.fromkeys(names, by * value) for by in (1, -1, 3)]
    for scale in _SCALES:  # near to, below and above 0
        at_scale = (at_point(names, point) for point in (1, 2, 3))
        points += [{name: scale * value for name, value in at.items()} for at in at_scale]
    return points


def at_point(names: frozenset[str], point: int) -> Point:
    return {name: coordinate(name, point) for name in names}


def has_branches(tree: Tree) -> bool:
    """Whether it may be given by one formula here and by another one there, as |x| is."""
    if tree[0] == "call" and tree[1] in _BRANCHING and symbols(tree):
        return True
    is_whole = tree[0] == "pow" and tree[2][0] == "number" and tree[2][1].denominator == 1
    if tree[0] == "pow" and symbols(tree[1]) and not is_whole:
        return True
    return any(map(has_branches, subtrees(tree)))


def constants(tree: Tree) -> frozenset[Fraction]:
    """The sizes of the rational numbers in a tree: in x - 10^6 that of the power as well."""
    value = exact(tree)
    own = () if value is None else (abs(value),)
    return frozenset(own).union(*map(constants, subtrees(tree)))


def is_defined(tree: Tree, where: Point, real: bool) -> bool:
    try:
        evaluated(tree, where, FIRST_PRECISION, real)
    except Undefined:
        return False
    return True


def equal_at(a: Tree, b: Tree, where: Point, real: bool) -> bool | None:
    """None where either is not defined there."""
    bits, most = POINT_PRECISION, MAX_POINT_PRECISION
    if not where:
        bits, most = CONSTANT_PRECISION, MAX_PRECISION
    try:
        first, size = evaluated(a, where, FIRST_PRECISION, real)
        second, other = evaluated(b, where, FIRST_PRECISION, real)
        if isinstance(first, Fraction) and isinstance(second, Fraction):
            return first == second
        size = max(size, other)
        if size < FIRST_PRECISION // 2 and differ(first, second, -16):
            return False
        bits += 4 * size
        if bits > most:
            return None
        first, size = evaluated(a, where, bits, real)
        second, other = evaluated(b, where, bits, real)
    except Undefined:
        return None
    return not differ(first, second, max(size, other) - bits // 2)


def proportional(a: Tree, b: Tree, imaginary: bool, positive: bool) -> bool:
    """Whether `a` is `b` times a constant other than 0, or above 0, and neither is constant."""
    names = variables(a, b, imaginary=imaginary)
    for point in range(POINTS):
        x, y = (replaced(tree, at_point(names, point)) for tree in (a, b))
        if any(not is_defined(z, {}, not imaginary) or equal(z, ZERO, imaginary) for z in (x, y)):
            continue
        if equal(y, b, imaginary) or not equal(a, mul(divided(x, y), b), imaginary):
            return False
        return not positive or order(divided(x, y), ZERO) == 1
    return False


def order(a: Tree, b: Tree) -> int | None:
    """-1, 0 or 1 as a constant is less than, equal to or more than another; None without values."""
    if "infinity" in (a[0], b[0]):
        x, y = (tree[1] if tree[0] == "infinity" else 0 for tree in (a, b))
        return (x > y) - (x < y)
    first, second = (rounded(tree, CONSTANT_PRECISION) for tree in (a, b))
    if first is None or second is None:
        return None
    return 0 if equal(a, b) else 1 if first > second else -1

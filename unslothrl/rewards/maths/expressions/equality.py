"""Whether two expressions are equal, without rounding.

Expressions of rational numbers are computed as fractions. Others are computed to many digits: a
difference that is far above the error of the last digit refuses; agreement is only accepted when
the digits outnumber by far the size of anything that occurs in the two expressions, so that
`\\sqrt2 + 10^{-400}` is not `\\sqrt2`. With variables this is repeated at random rational points,
positive, negative and whole (Schwartz 1980, doi 10.1145/322217.322225: a polynomial that is not
zero is zero at few of them).
"""

from fractions import Fraction

from unslothrl.rewards.maths.errors import NotRational, Undefined
from unslothrl.rewards.maths.expressions.evaluation import MAX_PRECISION, context, differ, evaluated
from unslothrl.rewards.maths.expressions.points import (
    POINTS,
    at_point,
    branch_points,
    constants,
    has_branches,
)
from unslothrl.rewards.maths.expressions.rational import Point, rational
from unslothrl.rewards.maths.expressions.tree import Tree, symbols

MAX_POINT_PRECISION = 3_000  # bits, at points of expressions with variables
FIRST_PRECISION, POINT_PRECISION, CONSTANT_PRECISION = 96, 192, 640  # bits

LEAST_POINTS = 4  # at which two expressions must both be defined


def equal(a: Tree, b: Tree, imaginary: bool = False) -> bool:
    """Whether two expressions are equal wherever both are defined. `imaginary`: i squared is -1."""
    if a == b:
        return True
    names = variables(a, b, imaginary=imaginary)
    if not names:
        return equal_constants(a, b, imaginary)
    both = agreement(a, b, names, imaginary, real=not imaginary)
    if both is None and not imaginary:
        both = agreement(a, b, names, imaginary, real=False)
    return both is True


def agreement(a: Tree, b: Tree, names: frozenset[str], imaginary: bool, real: bool) -> bool | None:
    """None where `b` is defined at too few points."""
    defined, shared = 0, 0
    points = [at_point(names, point) for point in range(POINTS)]
    if has_branches(a) or has_branches(b):
        points += branch_points(names, constants(a) | constants(b))
    for where in points:
        same = equal_at(a, b, where, imaginary, real)
        if same is False:
            return False
        shared += same is True
        defined += same is True or is_defined(b, where, imaginary, real)
    if shared < LEAST_POINTS:
        return None if defined < LEAST_POINTS else False
    return 4 * shared >= defined


def variables(*trees: Tree, imaginary: bool) -> frozenset[str]:
    names = frozenset().union(*map(symbols, trees)) - {"\\pi", "e"}
    return names - {"i"} if imaginary else names


def is_defined(tree: Tree, where: Point, imaginary: bool, real: bool) -> bool:
    try:
        evaluated(tree, where, FIRST_PRECISION, imaginary, real)
    except Undefined:
        return False
    return True


def equal_constants(a: Tree, b: Tree, imaginary: bool) -> bool:
    """As real numbers; as complex ones where neither has a real value, or where i may occur."""
    same = equal_at(a, b, {}, imaginary, True, CONSTANT_PRECISION)
    if same is None and (imaginary or not any(is_defined(x, {}, False, True) for x in (a, b))):
        same = equal_at(a, b, {}, imaginary, False, CONSTANT_PRECISION)
    return same is True


def equal_at(
    a: Tree, b: Tree, where: Point, imaginary: bool, real: bool, bits: int = POINT_PRECISION
) -> bool | None:
    """None where either is not defined there."""
    try:
        return rational(a, where) == rational(b, where)
    except NotRational:
        pass
    except Undefined:
        return None
    try:
        first, size = evaluated(a, where, FIRST_PRECISION, imaginary, real)
        second, other = evaluated(b, where, FIRST_PRECISION, imaginary, real)
        size = max(size, other)
        if size < FIRST_PRECISION // 2 and differ(first, second, -16):
            return False
        bits += 4 * size
        if bits > (MAX_POINT_PRECISION if where else MAX_PRECISION):
            return None
        first, size = evaluated(a, where, bits, imaginary, real)
        second, other = evaluated(b, where, bits, imaginary, real)
    except Undefined:
        return None
    return not differ(first, second, max(size, other) - bits // 2)


def ratio(a: Tree, b: Tree, imaginary: bool):
    """The constant that `a` is of `b`; None where there is none, or where it is 0."""
    names = variables(a, b, imaginary=imaginary)
    ratios: list = []
    for point in range(POINTS):
        where = at_point(names, point)
        pair = values_at(a, b, where, imaginary)
        if pair is None:
            continue
        if not pair[0] and not pair[1]:
            continue  # a common root
        if not pair[0] or not pair[1]:
            return None
        ratios.append(pair[0] / pair[1])
        if len(ratios) > 1 and not nearly(ratios[0], ratios[-1]):
            return None
    return ratios[0] if len(ratios) >= LEAST_POINTS else None


def nearly(a, b) -> bool:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    return not differ(in_context(a), in_context(b), -POINT_PRECISION // 2)


def in_context(value):
    if isinstance(value, Fraction):
        return context(POINT_PRECISION).mpf(value.numerator) / value.denominator
    return value


def values_at(a: Tree, b: Tree, where: Point, imaginary: bool) -> tuple | None:
    """Both as fractions or both to `POINT_PRECISION`, noise as 0."""
    try:
        return rational(a, where), rational(b, where)
    except NotRational:
        pass
    except Undefined:
        return None
    try:
        pair = []
        for tree in (a, b):
            value, size = evaluated(tree, where, POINT_PRECISION, imaginary, not imaginary)
            pair.append(value if differ(value, 0, size - POINT_PRECISION // 2) else 0)
    except Undefined:
        return None
    return tuple(pair)


def sign_between(a: Tree, b: Tree) -> int | None:
    """-1, 0 or 1 as a constant is less than, equal to or more than another; None without values."""
    if variables(a, b, imaginary=False):
        return None
    try:
        x, y = rational(a, {}), rational(b, {})
        return (x > y) - (x < y)
    except NotRational:
        pass
    except Undefined:
        return None
    if equal_constants(a, b, False):
        return 0
    try:
        x, _ = evaluated(a, {}, CONSTANT_PRECISION, False, True)
        y, _ = evaluated(b, {}, CONSTANT_PRECISION, False, True)
    except Undefined:
        return None
    return 1 if x > y else -1

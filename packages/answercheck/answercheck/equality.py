"""Whether two expressions are equal, without rounding.

Values that are fractions are compared as such. Others are computed to many digits: a difference
that is far above the error of the last digit refuses; agreement is only accepted when the digits
outnumber by far the size of anything that occurs in the two expressions, so that
`\\sqrt2 + 10^{-400}` is not `\\sqrt2`. With variables this is repeated at random rational points,
positive, negative and whole (Schwartz 1980, doi 10.1145/322217.322225: a polynomial that is not
zero is zero at few of them). `imaginary`: i squared is -1, and i is no variable.

What a unit, a percent sign or the rounding of a decimal may add is in `same_quantity`.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from answercheck import trees, units, values
from answercheck.kinds import Answer, Text, Value
from answercheck.trees import MINUS_ONE, Tree, divided, mul, number, replaced, subtrees, symbols
from answercheck.values import FIRST_PRECISION, MAX_PRECISION, Point, Undefined
from answercheck.vocabulary import KNOWN

MAX_POINT_PRECISION = 3_000  # bits, at points of expressions with variables
POINT_PRECISION, CONSTANT_PRECISION = 192, 640  # bits
POINTS = 16
ZERO = number(0)
LEAST_POINTS = 4  # at which two expressions must both be defined
MOST_CONSTANTS = 6  # at which formulas with branches are compared besides
_SCALES = [10, 10**2, 10**3, 10**4, 10**8, 10**16, 10**32, 10**64, 10**128]
CLOSE = Fraction(1, 10**6)  # see `rounds_to`
_IN_BRACKETS = re.compile(r"\A\((.)\)\Z")
ENOUGH, MOST_PLACES = 15, 40  # digits of a decimal that stands for a fraction
_BRANCHING = {"abs", "floor", "ceil", "max", "min"}


def equal(a: Tree, b: Tree, imaginary: bool = False) -> bool:
    """Whether two expressions are equal wherever both are defined, as real or complex numbers."""
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
    """Where expressions are compared; with branches, which may begin anywhere, at every scale."""
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
    return {name: values.coordinate(name, point) for name in names}


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
    value = values.exact(tree)
    own = () if value is None else (abs(value),)
    return frozenset(own).union(*map(constants, subtrees(tree)))


def is_defined(tree: Tree, where: Point, real: bool) -> bool:
    return values.attempted(tree, where, FIRST_PRECISION, real) is not None


def equal_at(a: Tree, b: Tree, where: Point, real: bool) -> bool | None:
    """None where either is not defined there."""
    bits, most = POINT_PRECISION, MAX_POINT_PRECISION
    if not where:
        bits, most = CONSTANT_PRECISION, MAX_PRECISION
    try:
        first, size = values.evaluated(a, where, FIRST_PRECISION, real)
        second, other = values.evaluated(b, where, FIRST_PRECISION, real)
        if isinstance(first, Fraction) and isinstance(second, Fraction):
            return first == second
        size = max(size, other)
        if size < FIRST_PRECISION // 2 and values.differ(first, second, -16):
            return False
        bits += 4 * size
        if bits > most:
            return None
        first, size = values.evaluated(a, where, bits, real)
        second, other = values.evaluated(b, where, bits, real)
    except Undefined:
        return None
    return not values.differ(first, second, max(size, other) - bits // 2)


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
    first, second = (values.rounded(tree, CONSTANT_PRECISION) for tree in (a, b))
    if first is None or second is None:
        return None
    return 0 if equal(a, b) else 1 if first > second else -1


def same_quantity(answer: Value, gold: Value, imaginary: bool) -> bool:
    """Equal in value and unit; a unit or percent sign that only one has may be forgiven."""
    if gold.unit and not answer.unit:  # "15 m" beside another unit: the letters are one as well
        answer = units.of_product(answer)
    elif answer.unit and not gold.unit:
        gold = units.of_product(gold)
    mark = marked(gold.tree)
    if answer.unit and answer.unit != gold.unit:
        is_known = answer.counted or all(name in KNOWN for name, _ in answer.unit)
        if gold.unit or mark or not is_known:
            return False
    if gold.unit and not answer.unit and marked(answer.tree):
        return False
    if equal(answer.tree, gold.tree, imaginary):
        return True
    if mark == "percent" and not marked(answer.tree):
        return equal(("call", "percent", answer.tree), gold.tree, imaginary)
    if gold.rounded:
        return rounds_to(answer.tree, gold.tree)
    return answer.rounded and is_expansion(answer.tree, gold.tree)


def marked(tree: Tree) -> str:
    """ "percent" or "degree" where the number is one of these."""
    if tree[0] == "mul" and tree[1] == MINUS_ONE and len(tree) == 3:
        tree = tree[2]
    return tree[1] if tree[0] == "call" and tree[1] in ("percent", "degree") else ""


def rounds_to(answer: Tree, gold: Tree) -> bool:
    """Whether a number is a gold decimal to six digits after the point, or a millionth of it."""
    value, expected = values.rounded(answer, POINT_PRECISION), values.exact(gold)
    return value is not None and expected is not None and is_close(value, expected)


def is_expansion(answer: Tree, gold: Tree) -> bool:
    """Whether a decimal is a fraction to its last digit, of `ENOUGH` or more."""
    value, expected = values.exact(answer), values.exact(gold)
    if value is None or expected is None:
        return False
    places = next((n for n in range(MOST_PLACES) if (10**n * value).denominator == 1), MOST_PLACES)
    if abs(value) * 10**places < 10 ** (ENOUGH - 1):
        return False
    return abs(value - expected) < max(Fraction(1, 10**places), abs(expected) / 10**15)


def is_close(value: Fraction, expected: Fraction) -> bool:
    """Within half a millionth, and within a millionth of the larger."""
    difference = abs(value - expected)
    return difference <= CLOSE / 2 and difference <= CLOSE * max(abs(value), abs(expected))


def near(side: Answer, gold: Answer) -> bool:
    """Whether a value after "approximately" is within a hundredth of the gold answer."""
    if not (isinstance(side, Value) and isinstance(gold, Value)):
        return False
    a, b = (values.rounded(x.tree, POINT_PRECISION) for x in (side, gold))
    return a is not None and b is not None and abs(a - b) * 100 <= abs(b)


def literally(a: Answer, b: Answer) -> bool:
    """The same formula in any order of terms and factors, and of numbers in any notation."""
    if isinstance(a, Value) and isinstance(b, Value):
        return a.unit == b.unit and unfolded(a.tree) == unfolded(b.tree)
    return same_text(a, b) if isinstance(a, Text) and isinstance(b, Text) else a == b


def unfolded(tree: Tree) -> Tree:
    """With 1.5 as 3/2; "1 + 1" and "8 \\cdot 9" stay."""
    if tree == MINUS_ONE:
        return tree
    if tree[0] == "number":
        size = abs(tree[1])
        top, bottom = number(size.numerator), number(size.denominator)
        plain = top if size.denominator == 1 else divided(top, bottom)
        return plain if size == tree[1] else mul(MINUS_ONE, plain)
    kind, *parts = (unfolded(part) if isinstance(part, tuple) else part for part in tree)
    return trees.add(*parts) if kind == "add" else mul(*parts) if kind == "mul" else (kind, *parts)


def same_text(answer: Answer, gold: Answer) -> bool:
    """Words without regard to case and spaces, "(B)" as "B"; a variable has its case."""
    words = [x.words if isinstance(x, Text) else x.symbol or "" for x in (answer, gold)]
    a, b = (_IN_BRACKETS.sub(r"\1", "".join(each.split())) for each in words)
    if isinstance(gold, Text) or len(b) > 2:
        a, b = a.casefold(), b.casefold()
    return a == b != ""

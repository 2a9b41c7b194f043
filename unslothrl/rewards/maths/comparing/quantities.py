"""Whether two numbers or expressions are the same: their values, units and rounding."""

from fractions import Fraction

from unslothrl.rewards.maths import units
from unslothrl.rewards.maths.errors import NotRational, Undefined
from unslothrl.rewards.maths.expressions.equality import POINT_PRECISION, equal, variables
from unslothrl.rewards.maths.expressions.evaluation import evaluated
from unslothrl.rewards.maths.expressions.rational import rational
from unslothrl.rewards.maths.expressions.tree import Tree
from unslothrl.rewards.maths.kinds import Answer, Value

CLOSE = Fraction(1, 10**6)  # see `rounds_to`
ENOUGH, MOST_PLACES = 15, 40  # digits of a decimal that stands for a fraction


def same_quantity(answer: Value, gold: Value, imaginary: bool) -> bool:
    """Equal in value and unit. A unit or a percent sign that only one of them has is forgiven where
    it cannot be another; a gold decimal may be rounded."""
    if gold.unit != answer.unit:
        answer, gold = with_units(answer, gold)
    other = answer.unit and answer.unit != gold.unit
    known = answer.counted or units.is_known(answer.unit)
    if other and (gold.unit or marked(gold.tree) or not known):
        return False
    if gold.unit and not answer.unit and marked(answer.tree):
        return False
    if equal(answer.tree, gold.tree, imaginary):
        return True
    if marked(gold.tree) == "percent" and not marked(answer.tree):
        return equal(("call", "percent", answer.tree), gold.tree, imaginary)
    if gold.rounded:
        return rounds_to(answer.tree, gold.tree)
    return answer.rounded and is_expansion(answer.tree, gold.tree)


def marked(tree: Tree) -> str:
    """ "percent" or "degree" where the number is one of these."""
    if tree[0] == "mul" and tree[1] == ("number", Fraction(-1)) and len(tree) == 3:
        tree = tree[2]
    return tree[1] if tree[0] == "call" and tree[1] in ("percent", "degree") else ""


def with_units(answer: Value, gold: Value) -> tuple[Value, Value]:
    """Where only one has a unit, and the other ends in letters, these are its unit: "15 m"."""
    if gold.unit and not answer.unit:
        number_and_unit = units.of_product(answer.tree)
        if number_and_unit is not None:
            return Value(number_and_unit[0], number_and_unit[1], answer.rounded), gold
    if answer.unit and not gold.unit:
        number_and_unit = units.of_product(gold.tree)
        if number_and_unit is not None:
            return answer, Value(number_and_unit[0], number_and_unit[1], gold.rounded)
    return answer, gold


def rounds_to(answer: Tree, gold: Tree) -> bool:
    """Whether a number is a gold decimal to six digits after the point, and to a millionth of it
    if that is less."""
    if variables(answer, imaginary=False):
        return False
    try:
        exact = rational(gold, {})
        try:
            value = rational(answer, {})
        except NotRational:
            digits, _ = evaluated(answer, {}, POINT_PRECISION, False, True)
            value = as_fraction(digits)
    except ArithmeticError:
        return False
    return is_close(value, exact)


def is_expansion(answer: Tree, gold: Tree) -> bool:
    """Whether a decimal is a fraction to its last digit, of `ENOUGH` that are significant or
    more, rounded or cut off: 0.0833333333333333 for 1/12."""
    try:
        value, exact = rational(answer, {}), rational(gold, {})
    except ArithmeticError:
        return False
    places = next((n for n in range(MOST_PLACES) if (10**n * value).denominator == 1), MOST_PLACES)
    if abs(value) * 10**places < 10 ** (ENOUGH - 1):
        return False
    return abs(value - exact) < max(Fraction(1, 10**places), abs(exact) / 10**15)


def is_close(value: Fraction, exact: Fraction) -> bool:
    """Within half a millionth, and within a millionth of the larger."""
    difference = abs(value - exact)
    return difference <= CLOSE / 2 and difference <= CLOSE * max(abs(value), abs(exact))


def as_fraction(value) -> Fraction:
    """An mpf without rounding."""
    sign, mantissa, exponent, _ = value._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def near(side: Answer, gold: Answer) -> bool:
    """Whether a value after "approximately" is within a hundredth of the gold answer."""
    if not (isinstance(side, Value) and isinstance(gold, Value)):
        return False
    trees = side.tree, gold.tree
    if any(variables(tree, imaginary=False) for tree in trees):
        return False
    try:
        a, b = (evaluated(tree, {}, POINT_PRECISION, False, True)[0] for tree in trees)
    except Undefined:
        return False
    return bool(abs(a - b) * 100 <= abs(b))

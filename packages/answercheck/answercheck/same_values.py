"""Whether two numbers or expressions are the same: their values, units and rounding; whether two
formulas are the same as they are written."""

import re
from fractions import Fraction

from answercheck import units
from answercheck.equality import POINT_PRECISION, equal
from answercheck.kinds import Answer, Text, Value, variable_of
from answercheck.trees import MINUS_ONE, Tree, add, divided, mul, number
from answercheck.unit_names import KNOWN
from answercheck.values import exact, rounded

CLOSE = Fraction(1, 10**6)  # see `rounds_to`
_IN_BRACKETS = re.compile(r"\A\((.)\)\Z")
ENOUGH, MOST_PLACES = 15, 40  # digits of a decimal that stands for a fraction


def same_quantity(answer: Value, gold: Value, imaginary: bool) -> bool:
    """Equal in value and unit. A unit or a percent sign that only one of them has is forgiven where
    it cannot be another; a gold decimal may be rounded."""
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
    """Whether a number is a gold decimal to six digits after the point, and to a millionth of it
    if that is less."""
    value, expected = rounded(answer, POINT_PRECISION), exact(gold)
    return value is not None and expected is not None and is_close(value, expected)


def is_expansion(answer: Tree, gold: Tree) -> bool:
    """Whether a decimal is a fraction to its last digit, of `ENOUGH` that are significant or
    more, rounded or cut off: 0.0833333333333333 for 1/12."""
    value, expected = exact(answer), exact(gold)
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
    a, b = (rounded(x.tree, POINT_PRECISION) for x in (side, gold))
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
    return add(*parts) if kind == "add" else mul(*parts) if kind == "mul" else (kind, *parts)


def same_text(answer: Answer, gold: Answer) -> bool:
    """Words without regard to case and spaces, "(B)" as "B"; a letter that is not marked as text
    has its case."""
    words = [x.words if isinstance(x, Text) else variable_of(x) or "" for x in (answer, gold)]
    a, b = (_IN_BRACKETS.sub(r"\1", "".join(each.split())) for each in words)
    if isinstance(gold, Text) or len(b) > 2:
        a, b = a.casefold(), b.casefold()
    return a == b != ""

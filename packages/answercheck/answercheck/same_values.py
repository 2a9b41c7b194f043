"""Whether two numbers or expressions are the same: their values, units and rounding; whether two
formulas are the same as they are written."""

from fractions import Fraction

from answercheck import units
from answercheck.equality import POINT_PRECISION, equal, variables
from answercheck.kinds import Answer, Text, Value, variable_of
from answercheck.trees import MINUS_ONE, Tree, add, divided, mul, number
from answercheck.values import Undefined, as_fraction, evaluated, exact, inexact

CLOSE = Fraction(1, 10**6)  # see `rounds_to`
ENOUGH, MOST_PLACES = 15, 40  # digits of a decimal that stands for a fraction


def same_quantity(answer: Value, gold: Value, imaginary: bool) -> bool:
    """Equal in value and unit. A unit or a percent sign that only one of them has is forgiven where
    it cannot be another; a gold decimal may be rounded."""
    if gold.unit and not answer.unit:
        answer = with_unit(answer)
    elif answer.unit and not gold.unit:
        gold = with_unit(gold)
    mark = marked(gold.tree)
    if answer.unit and answer.unit != gold.unit:
        known = answer.counted or units.is_known(answer.unit)
        if gold.unit or mark or not known:
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


def with_unit(value: Value) -> Value:
    """ "15 m" beside another with a unit: its last letters are one as well."""
    number_and_unit = units.of_product(value.tree)
    return value if number_and_unit is None else Value(*number_and_unit, value.rounded)


def rounds_to(answer: Tree, gold: Tree) -> bool:
    """Whether a number is a gold decimal to six digits after the point, and to a millionth of it
    if that is less."""
    expected = exact(gold)
    if expected is None or variables(answer):
        return False
    try:
        value, _ = evaluated(answer, {}, POINT_PRECISION)
    except Undefined:
        return False
    return is_close(as_fraction(value), expected)


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
    if variables(side.tree, gold.tree):
        return False
    try:
        a, b = (inexact(evaluated(x.tree, {}, POINT_PRECISION)[0]) for x in (side, gold))
    except Undefined:
        return False
    return bool(abs(a - b) * 100 <= abs(b))


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
    parts = [unfolded(part) if isinstance(part, tuple) else part for part in tree]
    return (
        {"add": add, "mul": mul}[tree[0]](*parts[1:]) if tree[0] in ("add", "mul") else tuple(parts)
    )


def same_text(answer: Answer, gold: Answer) -> bool:
    """Words without regard to case and spaces; a letter that is not marked as text has its case."""
    a, b = text_of(answer), text_of(gold)
    if a is None or b is None:
        return False
    if isinstance(gold, Text) or len(b) > 2:
        return a.casefold() == b.casefold()
    return a == b


def text_of(answer: Answer) -> str | None:
    """A text or a letter, without spaces; "(B)" as "B"."""
    if not isinstance(answer, Text):
        return variable_of(answer)
    text = "".join(answer.words.split())
    return text[1:-1] if len(text) == 3 and text[0] == "(" and text[2] == ")" else text

"""Whether two answers are mathematically the same.

The cheapest ways come first: equal text, then plain decimals, then equal tokens; only then both
are read (`reader`) and compared kind by kind (`compare`). Values are compared exactly (`values`).
Nothing here is evaluated as code, and the numbers that are computed are bounded; what takes too
long all the same is ended by the worker's deadline (`workers`).
"""

import functools
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from unslothrl.rewards.answers import normalise
from unslothrl.rewards.maths import compare, reader
from unslothrl.rewards.maths.kinds import Answer, Literal, Several, Text, Value
from unslothrl.rewards.maths.latex import Letters, Unreadable

LONGEST = 1000  # characters of an answer that is worth reading
MOST_PARTS = 20  # boxes that may be a list together
WORDS = re.compile(r"[A-Za-z ]+")
LETTERS_AFTER_NUMBER = re.compile(
    r"\d\s*(?:[A-Za-z]{2}|[A-Za-z]\s*(?:/|\\cdot|\\times|\*|-)?\s*\(?[A-Za-z])"
)
DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)")  # needs no parser


def same(answer: str, gold: str) -> bool:
    """Whether `answer` is `gold`, as text or as mathematics."""
    answer, gold = normalise(answer), normalise(gold)
    if answer == gold:
        return True
    if not answer or len(answer) > LONGEST:
        return False
    if DECIMAL.fullmatch(answer) and DECIMAL.fullmatch(gold):
        return same_decimals(answer, gold)
    expected = read_gold(gold)
    if same_kind(answer, gold, reader.read(answer), expected):
        return True
    if LETTERS_AFTER_NUMBER.search(answer) is None or (
        isinstance(expected, Value) and expected.unit
    ):
        return False
    return same_kind(answer, gold, reader.read(answer, Letters.PRODUCT), expected)


def same_kind(answer: str, gold: str, found: Answer, expected: Answer) -> bool:
    if isinstance(expected, Text) or isinstance(found, Text):
        return same_words(answer, gold, found, expected)
    if isinstance(expected, Literal) or isinstance(found, Literal):
        return expected == found
    return matches(found, expected)


def matches(found: Answer, expected: Answer) -> bool:
    try:
        return compare.matches(found, expected)
    except (Unreadable, RecursionError, ArithmeticError, ValueError):
        return False


def same_words(answer: str, gold: str, found: Answer, expected: Answer) -> bool:
    """Text, also where the other is written in plain letters that may be read as a product."""
    if isinstance(found, Text) and isinstance(expected, Text):
        pass
    elif WORDS.fullmatch(gold) and len(gold) > 2 and isinstance(found, Text):
        expected = Text(gold)
    elif WORDS.fullmatch(answer) and isinstance(expected, Text):
        found = reader.read(f"\\text{{{answer}}}")
    return matches(found, expected)


def same_list(answers: Sequence[str], gold: str) -> bool:
    """Whether several answers together are the list or set of values that `gold` is."""
    different = list(dict.fromkeys(answers))
    if not 2 <= len(different) <= MOST_PARTS or len(gold) > LONGEST:
        return False
    expected = read_gold(normalise(gold))
    if not isinstance(expected, Several) or sum(map(len, different)) > LONGEST:
        return False
    return matches(reader.joined([reader.read(one) for one in different]), expected)


def same_decimals(answer: str, gold: str) -> bool:
    """Exactly, or where the gold answer has a point, as `compare.rounds_to`."""
    a, b = Decimal(answer), Decimal(gold)
    return a == b or ("." in gold and compare.close(Fraction(a), Fraction(b)))


@functools.lru_cache(maxsize=4096)
def read_gold(gold: str) -> Answer:
    """Gold answers come again for every candidate of a group."""
    return reader.read(gold, Letters.SPACED_UNIT)

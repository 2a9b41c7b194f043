"""Whether two answers are mathematically the same.

The cheapest ways come first: equal text, then plain decimals, then equal tokens; only then both
are read (`notation`, `reading`) and compared kind by kind (`comparing`), values exactly
(`expressions`). Nothing here is evaluated as code, and the numbers that are computed are bounded;
what takes too long all the same is ended by the deadline of its process (`rewards.processes`).
"""

import functools
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from unslothrl.answers import normalise
from unslothrl.rewards.maths.comparing import comparison
from unslothrl.rewards.maths.comparing.quantities import is_close
from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.kinds import Answer, Collection, Literal, Text, Value
from unslothrl.rewards.maths.notation.tokens import Letters
from unslothrl.rewards.maths.reading.lists import as_list
from unslothrl.rewards.maths.reading.reader import read

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
    if same_kind(answer, gold, read(answer), expected):
        return True
    if LETTERS_AFTER_NUMBER.search(answer) is None or (
        isinstance(expected, Value) and expected.unit
    ):
        return False
    return same_kind(answer, gold, read(answer, Letters.PRODUCT), expected)


def same_kind(answer: str, gold: str, parsed: Answer, expected: Answer) -> bool:
    if isinstance(expected, Text) or isinstance(parsed, Text):
        return same_words(answer, gold, parsed, expected)
    if isinstance(expected, Literal) or isinstance(parsed, Literal):
        return expected == parsed
    return matches(parsed, expected)


def matches(parsed: Answer, expected: Answer) -> bool:
    try:
        return comparison.matches(parsed, expected)
    except (Unreadable, RecursionError, ArithmeticError, ValueError):
        return False


def same_words(answer: str, gold: str, parsed: Answer, expected: Answer) -> bool:
    """Text, also where the other is written in plain letters that may be read as a product."""
    if isinstance(parsed, Text) and isinstance(expected, Text):
        pass
    elif WORDS.fullmatch(gold) and len(gold) > 2 and isinstance(parsed, Text):
        expected = Text(gold)
    elif WORDS.fullmatch(answer) and isinstance(expected, Text):
        parsed = read(f"\\text{{{answer}}}")
    return matches(parsed, expected)


def same_list(answers: Sequence[str], gold: str) -> bool:
    """Whether several answers together are the list or set of values that `gold` is."""
    if not 2 <= len(answers) <= MOST_PARTS or len(gold) > LONGEST:
        return False
    expected = read_gold(normalise(gold))
    if not isinstance(expected, Collection) or sum(map(len, answers)) > LONGEST:
        return False
    forms = (answers, dict.fromkeys(answers))  # boxes may repeat what was boxed before
    return any(matches(as_list([read(answer) for answer in form]), expected) for form in forms)


def same_decimals(answer: str, gold: str) -> bool:
    """Exactly, or where the gold answer has a point, as `comparing.quantities.rounds_to`."""
    a, b = Decimal(answer), Decimal(gold)
    return a == b or ("." in gold and is_close(Fraction(a), Fraction(b)))


@functools.lru_cache(maxsize=4096)
def read_gold(gold: str) -> Answer:
    """Remembered: a gold answer comes again for every candidate of a group."""
    return read(gold, Letters.SPACED_UNIT)

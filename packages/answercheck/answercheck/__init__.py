"""Whether two answers are mathematically the same.

    same(r"\\frac{1}{2}", "0.5")                       -> True
    same_list(["1", "2"], r"\\{1, 2\\}")                 -> True

Equal text and plain decimals come first; only then both are read (`reading`) and compared kind by
kind (`comparison`), values exactly (`values`). Nothing is evaluated as code, and numbers are
bounded. Some texts take seconds: where they may be hostile, call this where it can be killed.
"""

import functools
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from answercheck.cleaning import option
from answercheck.comparison import Comparison, is_close, is_imaginary
from answercheck.kinds import Answer, Collection, Text, Value
from answercheck.reading import as_list, read
from answercheck.tokens import Letters

LONGEST = 1000  # characters of an answer that is worth reading
MOST_PARTS = 20  # answers that may be a list together
_WORDS = re.compile(r"[A-Za-z ]+")
_LETTER_AFTER_NUMBER = re.compile(r"\d\s*[A-Za-z]")
_DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)")  # needs no parser
_gold_option = functools.lru_cache(maxsize=4096)(option)
_THOUSANDS = re.compile(r"([-+]?\$?)(\d{1,3}(?:,\d{3})+)(\.\d+)?")


def same(answer: str, gold: str) -> bool:
    """Whether `answer` is `gold`, as text or as mathematics."""
    answer, gold = _plain(answer), _plain(gold)
    if answer == gold:
        return True
    return bool(answer) and len(answer) <= LONGEST and _is_same(answer, gold)


@functools.lru_cache(maxsize=4096)
def _is_same(answer: str, gold: str) -> bool:
    """Remembered: several completions of a problem come to one answer."""
    if _DECIMAL.fullmatch(answer) and _DECIMAL.fullmatch(gold):
        a, b = Decimal(answer), Decimal(gold)
        return a == b or ("." in gold and is_close(Fraction(a), Fraction(b)))
    expected = _read_gold(gold)
    if _is_right(answer, gold, read(answer), expected) or _is_option(answer, gold):
        return True
    has_unit = isinstance(expected, Value) and expected.unit
    if has_unit or _LETTER_AFTER_NUMBER.search(answer) is None:
        return False
    return _is_right(answer, gold, read(answer, Letters.PRODUCT), expected)


def _is_option(answer: str, gold: str) -> bool:
    """Whether one is the letter of a choice, and the other that letter with its text."""
    right, mark, expected = _gold_option(gold)
    letter, _, text = option(answer) if right else ("", "", "")
    is_text = same(text, expected) if text and expected else text != "" or mark == ")"
    return letter == right != "" and is_text


def same_list(answers: Sequence[str], gold: str) -> bool:
    """Whether several answers together are the list or set of values that `gold` is."""
    if not 2 <= len(answers) <= MOST_PARTS or len(gold) > LONGEST:
        return False
    expected = _read_gold(_plain(gold))
    if not isinstance(expected, Collection) or sum(map(len, answers)) > LONGEST:
        return False
    forms = (answers, dict.fromkeys(answers))  # some may repeat others
    return any(_matches(as_list([read(answer) for answer in form]), expected) for form in forms)


def _plain(answer: str) -> str:
    answer = answer.strip()
    return answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer


@functools.lru_cache(maxsize=4096)
def _read_gold(gold: str) -> Answer:
    """Remembered: a gold answer comes again for every completion of a problem."""
    return read(gold, Letters.SPACED_UNIT)


def _is_right(answer: str, gold: str, parsed: Answer, expected: Answer) -> bool:
    """A text may be written in plain letters, which may be read as a product."""
    if isinstance(parsed, Text) and not isinstance(expected, Text):
        expected = Text(gold) if _WORDS.fullmatch(gold) and len(gold) > 2 else expected
    elif not isinstance(parsed, Text) and isinstance(expected, Text) and _WORDS.fullmatch(answer):
        parsed = read(f"\\text{{{answer}}}")
    return _matches(parsed, expected)


def _matches(parsed: Answer, expected: Answer) -> bool:
    try:
        return Comparison(is_imaginary(expected)).same(parsed, expected)
    except (RecursionError, ArithmeticError, ValueError):  # Unreadable is a ValueError
        return False

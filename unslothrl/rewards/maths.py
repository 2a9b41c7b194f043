"""Whether two answers are mathematically the same, by math-verify.

Answers are wrapped in `\\boxed{}` before they are parsed: bare LaTeX often is not recognised. Text
that is equal after trimming needs no parser. Parsing may take for ever and may use any amount of
memory, so this runs in a process that can be killed (`workers`); math-verify's own timeouts use
SIGALRM, which does nothing outside of the main thread, and are off.
"""

import functools
import logging
import re
from decimal import Decimal

from unslothrl.rewards.answers import normalise

LONGEST = 1000  # characters of an answer that is worth parsing

DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)")  # needs no parser
CLOSE = Decimal("1e-6")  # two decimals are the same up to half of this, and to this share of them
BASE = re.compile(r"(.+)_\{?(\d+)\}?")  # 52_8; math-verify would take any base for any other
UNIT = re.compile(r"(.+)\\(?:text|mbox|mathrm)\{([^{}]*)\}(?:\^\{?(\d+)\}?)?")  # 15 \text{ cm}^2


def same(answer: str, gold: str) -> bool:
    """Whether `answer` is `gold`, as text or as mathematics."""
    answer, gold = normalise(answer), normalise(gold)
    if answer == gold:
        return True
    if not answer or len(answer) > LONGEST:
        return False
    if DECIMAL.fullmatch(answer) and DECIMAL.fullmatch(gold):
        return same_decimals(Decimal(answer), Decimal(gold))
    if differ_in_base(answer, gold) or differ_in_power_of_unit(answer, gold):
        return False
    from math_verify import verify

    expected, found = parsed(gold), parse(answer)
    return bool(expected and found) and verify(expected, found, timeout_seconds=None)


def same_decimals(a: Decimal, b: Decimal) -> bool:
    """As math-verify rounds, to six digits after the point, but small numbers stay apart."""
    difference = abs(a - b)
    return difference <= CLOSE / 2 and difference <= CLOSE * max(abs(a), abs(b))


def differ_in_base(answer: str, gold: str) -> bool:
    """Whether both name the base of their digits, and not the same."""
    a, b = BASE.fullmatch(answer), BASE.fullmatch(gold)
    return a is not None and b is not None and a[2] != b[2]


def differ_in_power_of_unit(answer: str, gold: str) -> bool:
    """Whether both have the same unit, in different powers: math-verify passes over units."""
    a, b = UNIT.fullmatch(answer), UNIT.fullmatch(gold)
    if a is None or b is None or a[2].strip() != b[2].strip():
        return False
    return (a[3] or "1") != (b[3] or "1")


@functools.lru_cache(maxsize=4096)
def parsed(gold: str) -> list:
    """Gold answers come again for every candidate of a group."""
    return parse(gold)


def parse(answer: str) -> list:
    from math_verify import parse

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns: no timeout is set
    return parse("\\boxed{" + answer + "}", parsing_timeout=None)

"""Sets of real numbers: unions of intervals with exact ends."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from unslothrl.rewards.maths.errors import NotRational, Undefined, Unreadable
from unslothrl.rewards.maths.expressions.equality import equal, sign_between
from unslothrl.rewards.maths.expressions.rational import rational
from unslothrl.rewards.maths.expressions.tree import Tree, add, negative


@dataclass(frozen=True)
class Interval:
    """An end that is None is infinite."""

    low: Tree | None
    low_closed: bool
    high: Tree | None
    high_closed: bool

    @property
    def is_empty(self) -> bool:
        """Whether no number is inside. Unreadable where the ends have letters."""
        if self.low is None or self.high is None:
            return False
        sign = compared(self.low, self.high)
        return sign > 0 or (sign == 0 and not (self.low_closed and self.high_closed))


EVERYTHING = (Interval(None, False, None, False),)
Intervals = tuple[Interval, ...]


def compared(a: Tree, b: Tree) -> int:
    """-1, 0 or 1. Unreadable where they cannot be compared."""
    sign = sign_between(a, b)
    if sign is None:
        raise Unreadable("ends that cannot be compared")
    return sign


def point(value: Tree) -> Interval:
    return Interval(value, True, value, True)


def _by_low(a: Interval, b: Interval) -> int:
    if a.low is None or b.low is None:
        return (b.low is None) - (a.low is None)
    return compared(a.low, b.low) or b.low_closed - a.low_closed


def _reaches(a: Interval, b: Interval) -> bool:
    """Whether `b`, which does not begin before `a`, begins before or where `a` ends."""
    if a.high is None or b.low is None:
        return True
    sign = compared(a.high, b.low)
    return sign > 0 or (sign == 0 and (a.high_closed or b.low_closed))


def _farther(a: Interval, b: Interval) -> tuple[Tree | None, bool]:
    if a.high is None or b.high is None:
        return None, False
    sign = compared(a.high, b.high)
    if sign == 0:
        return a.high, a.high_closed or b.high_closed
    return (a.high, a.high_closed) if sign > 0 else (b.high, b.high_closed)


def union(parts: Sequence[Interval]) -> Intervals:
    """In order, without overlaps; a single interval may have letters in its ends."""
    if len(parts) == 1:
        return tuple(parts)
    merged: list[Interval] = []
    for interval in sorted(
        (interval for interval in parts if not interval.is_empty), key=functools.cmp_to_key(_by_low)
    ):
        if merged and _reaches(merged[-1], interval):
            last = merged.pop()
            merged.append(Interval(last.low, last.low_closed, *_farther(last, interval)))
        else:
            merged.append(interval)
    return tuple(merged)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    return complement(union((*complement(a), *complement(b))))


def complement(intervals: Intervals) -> Intervals:
    """Of intervals in order without overlaps."""
    if not intervals:
        return EVERYTHING
    gaps: list[Interval] = []
    first, last = intervals[0], intervals[-1]
    if first.low is not None:
        gaps.append(Interval(None, False, first.low, not first.low_closed))
    for interval, following in itertools.pairwise(intervals):
        gaps.append(
            Interval(
                interval.high, not interval.high_closed, following.low, not following.low_closed
            )
        )
    if last.high is not None:
        gaps.append(Interval(last.high, not last.high_closed, None, False))
    return tuple(gaps)


def same(a: Intervals, b: Intervals) -> bool:
    return len(a) == len(b) and all(
        first.low_closed == second.low_closed
        and first.high_closed == second.high_closed
        and _same_end(first.low, second.low)
        and _same_end(first.high, second.high)
        for first, second in zip(a, b, strict=True)
    )


def _same_end(a: Tree | None, b: Tree | None) -> bool:
    if a is None or b is None:
        return a is b
    return equal(a, b)


def solve(left: Tree, relation: str, right: Tree, variable: str) -> Intervals | None:
    """The numbers for which "left relation right" is true; None where it is not linear in the
    variable with rational coefficients, nor the variable alone beside a constant."""
    if left == ("symbol", variable):
        return half_line(relation, right)
    if right == ("symbol", variable):
        return half_line(_TURNED[relation], left)
    if left[:2] == ("call", "abs") or left[0] == "pow":
        return solve_symmetric(left, relation, right, variable)
    if right[:2] == ("call", "abs") or right[0] == "pow":
        return solve_symmetric(right, _TURNED[relation], left, variable)
    solved = root(add(left, negative(right)), variable)
    if solved is None:
        return None
    value, rises = solved
    return half_line(relation if rises else _TURNED[relation], ("number", value))


def solve_symmetric(left: Tree, relation: str, right: Tree, variable: str) -> Intervals | None:
    """ "|u| < c" and "u^2 < c" for a positive constant c, as -c < u < c or -sqrt c < u < sqrt c."""
    inner, end = (left[2], right) if left[0] == "call" else (left[1], None)
    if end is None and left[2] == ("number", Fraction(2)):
        end = ("pow", right, ("number", Fraction(1, 2)))
    if end is None or relation == "ne" or sign_between(right, ("number", Fraction(0))) != 1:
        return None
    below = solve(inner, relation, end, variable)
    above = solve(inner, _TURNED[relation], negative(end), variable)
    if below is None or above is None:
        return None
    inside = relation in ("<", "le")
    return intersection(below, above) if inside else union((*below, *above))


_TURNED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "ne": "ne"}


def half_line(relation: str, end: Tree) -> Intervals:
    if relation == "ne":
        return complement((point(end),))
    if relation in ("<", "le"):
        return (Interval(None, False, end, relation == "le"),)
    return (Interval(end, relation == "ge", None, False),)


_PROBES = (Fraction(0), Fraction(1), Fraction(-3), Fraction(17, 7), Fraction(1009))


def root(tree: Tree, variable: str):
    """Of an expression that is linear in one variable, and whether it rises; else None."""
    try:
        at = [rational(tree, {variable: x}) for x in _PROBES]
    except (NotRational, Undefined):
        return None
    slope = at[1] - at[0]
    linear = all(value == at[0] + slope * x for value, x in zip(at, _PROBES, strict=True))
    return (-at[0] / slope, slope > 0) if linear and slope else None

"""Sets of real numbers: unions of intervals with exact ends, and which answers are such sets."""

import functools
import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction

from answercheck.kinds import Answer, Collection, Cut, Intervals, Region, Row, Value
from answercheck.tokens import Unreadable
from answercheck.trees import Tree, add, negative, number, symbols
from answercheck.values import equal, exact, order, variables

PLUS_INFINITY: Tree = ("infinity", 1)
MINUS_INFINITY: Tree = ("infinity", -1)
LOWEST: Cut = (MINUS_INFINITY, True)
HIGHEST: Cut = (PLUS_INFINITY, False)
EVERYTHING: Intervals = ((LOWEST, HIGHEST),)
TURNED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "ne": "ne"}
_ALWAYS = {("<", 1), ("le", 1), (">", -1), ("ge", -1)}  # true of a number and an infinity
_PROBES = (Fraction(0), Fraction(1), Fraction(-3), Fraction(17, 7), Fraction(1009))


def cut(end: Tree, is_after: bool) -> Cut:
    """The place before or after a number; an infinity is in no interval."""
    return (end, end[1] < 0 if end[0] == "infinity" else is_after)


def compared(a: Cut, b: Cut) -> int:
    """Below 0, 0 or above 0. Unreadable where the numbers cannot be compared."""
    sign = order(a[0], b[0])
    if sign is None:
        raise Unreadable("ends that cannot be compared")
    return sign or a[1] - b[1]


def point(value: Tree) -> tuple[Cut, Cut]:
    return (value, False), (value, True)


def union(parts: Iterable[tuple[Cut, Cut]]) -> Intervals:
    """In order, without overlaps; a single interval may have letters in its ends."""
    parts = tuple(parts)
    if len(parts) == 1:
        return parts
    merged: list[tuple[Cut, Cut]] = []
    filled = [part for part in parts if compared(*part) < 0]
    by_low = functools.cmp_to_key(compared)
    for low, high in sorted(filled, key=lambda part: by_low(part[0])):
        if merged and compared(low, merged[-1][1]) <= 0:
            low, before = merged.pop()
            high = before if compared(before, high) > 0 else high
        merged.append((low, high))
    return tuple(merged)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    return complement(union((*complement(a), *complement(b))))


def complement(intervals: Intervals) -> Intervals:
    cuts = [LOWEST, *itertools.chain(*intervals), HIGHEST]
    return tuple(gap for gap in zip(cuts[::2], cuts[1::2], strict=True) if gap[0] != gap[1])


def same(a: Intervals, b: Intervals) -> bool:
    cuts = zip(itertools.chain(*a), itertools.chain(*b), strict=True)
    return len(a) == len(b) and all(x[1] == y[1] and equal(x[0], y[0]) for x, y in cuts)


def intervals_of(answer: Answer) -> Intervals | None:
    """A set of real numbers as intervals; None where it is none, as "(2, 1)"."""
    if isinstance(answer, Region):
        return answer.intervals
    tree = answer.plain
    if tree is not None and tree[0] != "infinity":
        return (point(tree),)
    if isinstance(answer, Collection):  # of intervals, or a set of numbers
        are_numbers = {isinstance(part, Value) for part in answer.parts}
        parts = [intervals_of(part) for part in answer.parts]
        is_region = all(parts) and (are_numbers == {False} or (answer.is_set and all(are_numbers)))
        return union(itertools.chain(*filter(None, parts))) if is_region else None
    if not isinstance(answer, Row) or answer.kind not in ("()", "(]", "[)", "[]"):
        return None
    ends = [end for part in answer.parts if (end := part.plain) is not None]
    if not len(ends) == len(answer.parts) == 2:
        return None
    interval = cut(ends[0], answer.kind[0] == "("), cut(ends[1], answer.kind[1] == "]")
    try:
        return (interval,) if compared(*interval) < 0 else None
    except Unreadable:
        return (interval,)


def region_names(answer: Answer) -> frozenset[str]:
    if isinstance(answer, Region):
        return frozenset((answer.variable,) if answer.variable else ())
    parts = answer.parts if isinstance(answer, Collection) else ()
    return frozenset().union(*map(region_names, parts))


def inequality(sides: Sequence[Answer], signs: Sequence[str]) -> Region | None:
    """The solutions of inequalities in one variable; None where they are not known."""
    trees = [tree for side in sides if (tree := side.plain) is not None]
    if len(trees) < len(sides):
        return None
    names = variables(*trees)
    middle = sides[1].symbol
    if len(names) > 1 and len(sides) == 3:  # a < x < b, with letters in the ends
        low, _, high = trees
        are_ends = middle is not None and middle not in symbols(low) | symbols(high)
        if not are_ends or not set(signs) <= {"<", "le"}:
            return None
        ends = cut(low, signs[0] == "<"), cut(high, signs[1] == "le")
        return Region((ends,), middle)
    if len(names) != 1:
        return None
    (name,) = names
    total = EVERYTHING
    for left, sign, right in zip(trees, signs, trees[1:], strict=False):
        part = solve(left, sign, right, name)
        if part is None:
            return None
        try:
            total = part if total == EVERYTHING else intersection(total, part)
        except Unreadable:
            return None
    return Region(total, name)


def solve(left: Tree, relation: str, right: Tree, variable: str) -> Intervals | None:
    """The numbers for which it is true; None where it is not linear, nor of |u| or u^2."""
    if right == ("symbol", variable) or left[0] == "infinity":
        left, relation, right = right, TURNED[relation], left
    if right[0] == "infinity":
        return EVERYTHING if (relation, right[1]) in _ALWAYS else None
    if left == ("symbol", variable):
        return half_line(relation, right)
    for one, sign, other in ((left, relation, right), (right, TURNED[relation], left)):
        if one[:2] == ("call", "abs") or one[0] == "pow":
            return solve_symmetric(one, sign, other, variable)
    tree = add(left, negative(right))
    at = [exact(tree, {variable: x}) for x in _PROBES]
    if None in at:
        return None
    first, second, *_ = (value for value in at if value is not None)
    slope = second - first
    if not slope or any(y != first + slope * x for x, y in zip(_PROBES, at, strict=True)):
        return None
    return half_line(relation if slope > 0 else TURNED[relation], number(-first / slope))


def solve_symmetric(left: Tree, relation: str, right: Tree, variable: str) -> Intervals | None:
    """ "|u| < c" and "u^2 < c" for a positive constant c."""
    inner, end = (left[2], right) if left[0] == "call" else (left[1], None)
    if end is None and left[2] == number(2):
        end = ("pow", right, number(Fraction(1, 2)))
    if end is None or relation == "ne" or order(right, number(0)) != 1:
        return None
    below = solve(inner, relation, end, variable)
    above = solve(inner, TURNED[relation], negative(end), variable)
    if below is None or above is None:
        return None
    is_inside = relation in ("<", "le")
    return intersection(below, above) if is_inside else union((*below, *above))


def half_line(relation: str, end: Tree) -> Intervals:
    if relation == "ne":
        return complement((point(end),))
    edge = cut(end, relation in ("le", ">"))
    return ((LOWEST, edge) if relation in ("<", "le") else (edge, HIGHEST),)

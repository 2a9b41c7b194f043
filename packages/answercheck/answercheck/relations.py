"""Equations, inequalities and memberships, from their sides; lists of these."""

import functools
import itertools
from collections.abc import Sequence

from answercheck import regions
from answercheck.kinds import (
    Answer,
    Collection,
    Region,
    Relation,
    Row,
    Value,
    plain_tree,
    variable_of,
)
from answercheck.tokens import Tokens, Unreadable, closes, literal
from answercheck.trees import symbols
from answercheck.vocabulary import GREEK_LETTERS, words

RELATIONS = set(
    words(
        """= < > le ge ne in notin approx equiv to sim subset subseteq implies parallel perp cong
        propto : coloneqq ll gg mod"""
    )
)
_RISING, _FALLING = {"<", "le"}, {">", "ge"}
_CALLED = GREEK_LETTERS - {"pi"} | {"mathbb"}


def read_application(tokens: Tokens) -> Answer | None:
    """ "T(n)", "p(x)", "P(X = 2)" and "E[X]" as names of what they are equal to; "x(x + 1)" and
    "x(2)" are products, f(x) and the like are read by the parser."""
    if len(tokens) < 4:
        return None
    name = tokens[0]
    if name.value in "eifgh" if name.kind == "letter" else name.value not in _CALLED:
        return None
    start = next((i for i, token in enumerate(tokens) if token.value in ("(", "[")), 0)
    before = [token.value for token in tokens[:start]]
    if not start or not closes(tokens[start:]) or set(before) & set("^+-*/"):
        return None
    if len([token for token in tokens[:start] if token.kind == "letter"]) > 1 and "_" not in before:
        return None
    inside = tokens[start + 1 : -1]
    separators = RELATIONS | {"|", "cap", "cup", ","}
    is_simple = len(inside) == 1 or any(token.value in separators for token in inside)
    if name.value.islower() and name.kind == "letter":
        is_simple = is_simple and all(
            (token.kind == "letter" and token.value != name.value)
            or (token.kind == "number" and name.value not in "xyz")
            for token in inside
            if token.value not in ",{}"
        )
    return Value(("call", "of " + literal(tokens))) if is_simple else None


def relation(sides: Sequence[Answer], signs: Sequence[str]) -> Answer:
    """Sides with signs between them: a region where they are inequalities that can be solved, a
    list where the last side is one ("x = \\pm 2"), else a relation."""
    name = variable_of(sides[0])
    if [*signs] == ["in"] and name is not None:
        if isinstance(sides[1], Collection):
            return Collection(tuple(Relation((sides[0], part), ("=",)) for part in sides[1].parts))
        intervals = regions.intervals_of(sides[1]) if isinstance(sides[1], Region | Row) else None
        if intervals is not None:
            return Region(intervals, name)
    if set(signs) == {":"}:
        return Row("ratio", tuple(sides))
    half = len(signs) // 2
    if half and [*signs[:half], *signs[half + 1 :]] == [":"] * 2 * half and signs[half] == "=":
        ratios = Row("ratio", tuple(sides[: half + 1])), Row("ratio", tuple(sides[half + 1 :]))
        return Relation(ratios, ("=",))
    if set(signs) <= _FALLING:
        sides, signs = sides[::-1], [regions.TURNED[sign] for sign in reversed(signs)]
    if set(signs) <= _RISING | _FALLING | {"ne"}:
        region = inequality(sides, signs)
        if region is not None:
            return region
    lists = [side for side in sides if isinstance(side, Collection)]
    if len(lists) == 1 and lists[0] is sides[-1] and len(sides) == 2:
        return Collection(tuple(Relation((sides[0], part), (signs[0],)) for part in lists[0].parts))
    return Relation(tuple(sides), tuple(signs))


def inequality(sides: Sequence[Answer], signs: Sequence[str]) -> Region | None:
    """The solutions of inequalities in one variable; None where they are not known."""
    trees = [tree for side in sides if (tree := plain_tree(side)) is not None]
    if len(trees) < len(sides):
        return None
    names = frozenset().union(*map(symbols, trees)) - {"\\pi", "e"}
    middle = variable_of(sides[1])
    if len(names) > 1 and len(sides) == 3:  # a < x < b, with letters in the ends
        low, _, high = trees
        if middle is None or middle in symbols(low) | symbols(high) or not set(signs) <= _RISING:
            return None
        ends = regions.cut(low, signs[0] == "<"), regions.cut(high, signs[1] == "le")
        return Region((ends,), middle)
    if len(names) != 1:
        return None
    (name,) = names
    total = regions.EVERYTHING
    for left, sign, right in zip(trees, signs, trees[1:], strict=False):
        part = regions.solve(left, sign, right, name)
        if part is None:
            return None
        try:
            total = part if total == regions.EVERYTHING else regions.intersection(total, part)
        except Unreadable:
            return None
    return Region(total, name)


def as_region(answers: Sequence[Answer], connectives: set[str]) -> Region | None:
    """Inequalities in one variable: "or" is a union; a comma or "and" is an intersection, unless
    that is empty."""
    parts = [part for part in labelled(answers) if isinstance(part, Region) and part.intervals]
    names = {part.variable for part in parts} - {None}
    is_list = not names and len(parts) > 1 and connectives == {","}
    if len(parts) < len(answers) or len(names) > 1 or is_list:
        return None
    name = next(iter(names), None)
    together = regions.union([interval for part in parts for interval in part.intervals])
    if not names or connectives == {"or"}:
        return Region(together, name)
    common = functools.reduce(regions.intersection, [part.intervals for part in parts])
    return Region(common or together, name)


def as_list(answers: Sequence[Answer]) -> Collection:
    """Answers that stood apart as a list."""
    lists = [each.parts if isinstance(each, Collection) else (each,) for each in labelled(answers)]
    return Collection(tuple(itertools.chain(*lists)))


def labelled(answers: Sequence[Answer]) -> Sequence[Answer]:
    """ "x = 1, 2" as "x = 1, x = 2", and "x != 1, 2" likewise."""
    first, *others = answers
    sides: Sequence[Answer] = ()
    sign = "="
    if isinstance(first, Relation) and first.signs == ("=",):
        sides = first.sides
    elif isinstance(first, Region) and first.variable is not None:
        gaps = regions.complement(first.intervals)
        if len(gaps) == 1 and gaps[0][0][0] == gaps[0][1][0]:  # a single number
            sides, sign = (Value(("symbol", first.variable)),), "ne"
    if not sides or not all(isinstance(each, Value) for each in (*sides, *others)):
        return answers
    return [first, *(relation((sides[0], each), (sign,)) for each in others)]

"""Equations, inequalities and memberships, from their sides."""

from collections.abc import Sequence

from unslothrl.rewards.maths import regions
from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.expressions.tree import symbols
from unslothrl.rewards.maths.intervals import row_intervals
from unslothrl.rewards.maths.kinds import (
    Answer,
    Collection,
    Infinity,
    Region,
    Relation,
    Row,
    Value,
    variable_of,
)
from unslothrl.rewards.maths.notation.brackets import closes, literal
from unslothrl.rewards.maths.notation.tokens import Token, Tokens
from unslothrl.rewards.maths.notation.vocabulary import GREEK_LETTERS
from unslothrl.rewards.maths.regions import Interval

RELATIONS = {"=", "<", ">", "le", "ge", "ne", "in", "notin", "approx", "equiv", "to", "sim",
              "subset", "subseteq", "implies", "parallel", "perp", "cong", "propto", ":", "|",
              "coloneqq", "ll", "gg", "mod"}  # fmt: skip
ORDERS = {"<", ">", "le", "ge"}


def read_application(tokens: Tokens) -> Answer | None:
    """ "T(n)", "p(x)", "P(X = 2)" and "E[X]" as names of what they are equal to; "x(x + 1)" and
    "x(2)" are products."""
    if len(tokens) < 4 or not is_function_name(tokens[0]):
        return None
    start = next((i for i, token in enumerate(tokens) if token.value in ("(", "[")), 0)
    before = [token.value for token in tokens[:start]]
    if not start or not closes(tokens[start:]) or set(before) & set("^+-*/"):
        return None
    if len([token for token in tokens[:start] if token.kind == "letter"]) > 1 and "_" not in before:
        return None
    inside = tokens[start + 1 : -1]
    simple = len(inside) == 1 or any(
        token.value in RELATIONS | {"cap", "cup", ","} for token in inside
    )
    if tokens[0].value.islower() and tokens[0].kind == "letter":
        arguments = [token for token in inside if token.value not in ",{}"]
        simple = simple and not any(token.value in RELATIONS for token in inside)
        simple = simple and all(
            (token.kind == "letter" and token.value != tokens[0].value)
            or (token.kind == "number" and tokens[0].value not in "xyz")
            for token in arguments
        )
    return Value(("call", "of " + literal(tokens))) if simple else None


def is_function_name(token: Token) -> bool:
    """Whether a function may be called so, other than f, g and h, which the parser reads."""
    if token.kind == "letter":
        return token.value not in "eifgh"
    return token.value in GREEK_LETTERS - {"pi"} or token.value == "mathbb"


def relation(sides: Sequence[Answer], signs: Sequence[str]) -> Answer:
    """Sides with signs between them: a region where they are inequalities that can be solved, a
    list where the last side is one ("x = \\pm 2"), else a relation."""
    if signs == ["in"]:
        return membership(sides[0], sides[1])
    if all(sign in ORDERS or sign == "ne" for sign in signs):
        region = inequality(sides, signs)
        if region is not None:
            return region
    lists = [side for side in sides if isinstance(side, Collection)]
    if len(lists) == 1 and lists[0] is sides[-1] and len(sides) == 2:
        parts = lists[0].parts
        return Collection(tuple(Relation((sides[0], part), (signs[0],)) for part in parts))
    return Relation(tuple(sides), tuple(signs))


def membership(left: Answer, right: Answer) -> Answer:
    """ "x in (1, 2)" is the interval, with its variable."""
    name = variable_of(left)
    if name is not None and isinstance(right, Region):
        return Region(right.intervals, name)
    if name is not None and isinstance(right, Row):
        intervals = row_intervals(right)
        if intervals is not None:
            return Region(intervals, name)
    if name is not None and isinstance(right, Collection):
        return Collection(tuple(Relation((left, part), ("=",)) for part in right.parts))
    return Relation((left, right), ("in",))


def inequality(sides: Sequence[Answer], signs: Sequence[str]) -> Region | None:
    """The solutions of inequalities in one variable; None where they are not known."""
    names = {
        name
        for side in sides
        if isinstance(side, Value)
        for name in symbols(side.tree) - {"\\pi", "e"}
    }
    if len(names) > 1 and len(sides) == 3:  # a < x < b
        middle = variable_of(sides[1])
        outer = [side for side in (sides[0], sides[2]) if isinstance(side, Value)]
        if middle is None or any(middle in symbols(side.tree) for side in outer):
            return None
        return between(sides, signs, middle)
    if len(names) != 1:
        return None
    (name,) = names
    total: regions.Intervals = regions.EVERYTHING
    for left, sign, right in zip(sides, signs, sides[1:], strict=False):
        part = solutions(left, sign, right, name)
        if part is None:
            return None
        try:
            total = part if total == regions.EVERYTHING else regions.intersection(total, part)
        except Unreadable:
            return None
    return Region(total, name)


def between(sides: Sequence[Answer], signs: Sequence[str], name: str) -> Region | None:
    """ "a < x < b", with letters in the ends."""
    rising = all(sign in ("<", "le") for sign in signs)
    if not rising and not all(sign in (">", "ge") for sign in signs):
        return None
    ends = (sides[0], sides[2]) if rising else (sides[2], sides[0])
    closed = [sign in ("le", "ge") for sign in (signs if rising else signs[::-1])]
    if not all(isinstance(end, Value) and not end.unit for end in ends):
        return None
    low, high = (end.tree for end in ends if isinstance(end, Value))
    return Region((Interval(low, closed[0], high, closed[1]),), name)


def solutions(left: Answer, sign: str, right: Answer, name: str) -> regions.Intervals | None:
    """Of one inequality; None where they are not known."""
    if isinstance(left, Infinity) or isinstance(right, Infinity):
        low = isinstance(left, Infinity) and left.sign < 0 and sign in ("<", "le")
        high = isinstance(right, Infinity) and right.sign > 0 and sign in ("<", "le")
        return regions.EVERYTHING if low or high else None
    if not (isinstance(left, Value) and isinstance(right, Value)) or left.unit or right.unit:
        return None
    return regions.solve(left.tree, sign, right.tree, name)

"""The kinds of answers."""

from dataclasses import dataclass, field

from unslothrl.rewards.maths.expressions.tree import Tree
from unslothrl.rewards.maths.regions import Intervals
from unslothrl.rewards.maths.units import Unit


class Answer:
    """One of the kinds below."""


@dataclass(frozen=True)
class Value(Answer):
    """A number or an expression. `rounded`: a decimal with a point, such as 3.1416. `counted`: its
    unit may be any things that are counted, such as apples."""

    tree: Tree
    unit: Unit = ()
    rounded: bool = False
    counted: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Text(Answer):
    words: str  # as written, spaces reduced


@dataclass(frozen=True)
class BasedNumber(Answer):
    """The digits of a whole number in a base that is named."""

    digits: str
    base: str


@dataclass(frozen=True)
class Infinity(Answer):
    sign: int


@dataclass(frozen=True)
class EmptySet(Answer):
    """No solution, the empty set."""


@dataclass(frozen=True)
class Row(Answer):
    """A point, tuple, vector or interval: parts in brackets, in order."""

    opening: str
    parts: tuple[Answer, ...]
    closing: str


@dataclass(frozen=True)
class Collection(Answer):
    """A set, or a list of values: the order does not count. In a list of values, but not in
    a set or a list of points, it counts how often each stands there."""

    parts: tuple[Answer, ...]
    is_set: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Region(Answer):
    """Real numbers, as intervals; the variable where it is named."""

    intervals: Intervals
    variable: str | None = None


@dataclass(frozen=True)
class Matrix(Answer):
    rows: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True)
class Cases(Answer):
    """The rows of a piecewise definition."""

    rows: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True)
class Relation(Answer):
    """Sides with a relation between each two: "=", "<", "in", "equiv", ..."""

    sides: tuple[Answer, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True)
class Mixed(Answer):
    """Words and mathematics, one after the other."""

    parts: tuple[Answer, ...]


@dataclass(frozen=True)
class Literal(Answer):
    """What has no known meaning: equal only to itself."""

    text: str


def variable_of(answer: Answer) -> str | None:
    """The name of a variable that stands alone; None for every other answer."""
    if isinstance(answer, Value) and answer.tree[0] == "symbol" and not answer.unit:
        return answer.tree[1]
    return None

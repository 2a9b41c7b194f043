"""The kinds of answers."""

from dataclasses import dataclass, field
from fractions import Fraction

from answercheck.trees import Tree

Unit = tuple[tuple[str, Fraction], ...]  # powers of names
Cut = tuple[Tree, bool]  # a place between real numbers: right before one, or (True) right after it
Intervals = tuple[tuple[Cut, Cut], ...]  # in order, without overlaps


class Answer:
    """One of the kinds below."""

    @property
    def plain(self) -> Tree | None:
        """The tree of a value without a unit; None for every other answer."""
        return self.tree if isinstance(self, Value) and not self.unit else None

    @property
    def symbol(self) -> str | None:
        """The name of a variable that stands alone; None for every other answer."""
        return self.plain[1] if self.plain is not None and self.plain[0] == "symbol" else None


@dataclass(frozen=True)
class Value(Answer):
    """A number, an infinity or an expression. `rounded`: a decimal with a point, such as 3.1416.
    `counted`: its unit may be any things that are counted, such as apples."""

    tree: Tree
    unit: Unit = ()
    rounded: bool = False
    counted: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Text(Answer):
    words: str  # as written, spaces reduced


@dataclass(frozen=True)
class Literal(Answer):
    """What is equal only to itself: a number in a base that is named, what is not understood."""

    text: str


@dataclass(frozen=True)
class Row(Answer):
    """Parts in order. `kind`: the brackets of a point, vector or interval, such as "(]"; "matrix",
    of which each part is a "row"; "cases", also of rows; "mixed", words and mathematics in turns;
    "or", words; "ratio"."""

    kind: str
    parts: tuple[Answer, ...]


@dataclass(frozen=True)
class Collection(Answer):
    """A set, or a list. Only in a list of values it counts how often each stands there."""

    parts: tuple[Answer, ...]
    is_set: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Region(Answer):
    """Real numbers, as intervals, or none; the variable where it is named."""

    intervals: Intervals
    variable: str | None = None


@dataclass(frozen=True)
class Relation(Answer):
    """Sides with a relation between each two: "=", "<", "in", "equiv", ..."""

    sides: tuple[Answer, ...]
    signs: tuple[str, ...]

"""Names on a side of an equation: "x = 5", "f(x) = 2x", "AB = 3"."""

from collections.abc import Sequence

from unslothrl.rewards.maths.expressions.tree import Tree, symbols
from unslothrl.rewards.maths.kinds import (
    Answer,
    Cases,
    Collection,
    Matrix,
    Mixed,
    Region,
    Relation,
    Row,
    Text,
    Value,
    variable_of,
)

_INDICES = {"j", "k", "n", "m", "l"}  # beside them, i counts
_TURNED = {">": "<", "ge": "le"}


def is_imaginary(gold: Answer) -> bool:
    """Whether i in the gold answer is the imaginary unit: not where it stands alone on a side of
    an equation, has a prime or an index, or stands among indices."""
    if isinstance(gold, Relation) and any(variable_of(side) == "i" for side in gold.sides):
        return False
    if isinstance(gold, Region) and gold.variable == "i":
        return False
    names = letters(gold)
    return "i" in names and not names & _INDICES


def letters(answer: Answer) -> frozenset[str]:
    """The names of the symbols anywhere in an answer."""
    if isinstance(answer, Value):
        return symbols(answer.tree)
    parts: Sequence[Answer] = ()
    if isinstance(answer, Row | Collection | Mixed):
        parts = answer.parts
    elif isinstance(answer, Relation):
        parts = answer.sides
    elif isinstance(answer, Matrix | Cases):
        parts = [cell for row in answer.rows for cell in row]
    return frozenset().union(*map(letters, parts))


def is_label(side: Answer) -> bool:
    """What a value may be called: a letter, f(x), P(A), the segment AB, a word."""
    if isinstance(side, Text):
        return True
    if not isinstance(side, Value) or side.unit:
        return False
    tree = side.tree
    if tree[0] == "symbol" and tree[1] not in ("\\pi", "e"):
        return True
    if tree[0] == "call":
        return (
            tree[1].startswith("of ")
            or tree[1] == "det"
            or (tree[1] == "abs" and is_segment(tree[2]))
        )
    return is_segment(tree)


def is_segment(tree: Tree) -> bool:
    """AB, or ABC."""
    if tree[0] != "mul":
        return False
    names = [factor[1] for factor in tree[1:] if factor[0] == "symbol"]
    return len(names) == len(tree) - 1 >= 2 and all(
        len(name) == 1 and name.isupper() for name in names
    )


def bound_letters(name: Answer) -> frozenset[str]:
    """The letters that may not occur in what a name stands for: those of f(x) may."""
    if isinstance(name, Value) and name.tree[0] == "call" and name.tree[1].startswith("of "):
        return frozenset()
    return letters(name)


def mixes(answer: Collection) -> bool:
    """Whether its parts are values of different variables: "x = 1, y = 2". The index
    does not count: x_1 and x_2 are the same variable."""
    names = {pair[0].partition("_")[0] for part in answer.parts if (pair := label_of(part))}
    return len(names) > 1


def label_of(answer: Answer) -> tuple[str, Answer] | None:
    """The name and the value of "x = 5" and "5 = x"."""
    if not isinstance(answer, Relation) or answer.signs not in (("=",), ("approx",)):
        return None
    for name, value in (answer.sides, answer.sides[::-1]):
        if is_label(name) and not is_label(value) and not (bound_letters(name) & letters(value)):
            if isinstance(name, Text):
                return name.words, value
            assert isinstance(name, Value)
            tree = name.tree
            return (tree[1] if tree[0] in ("symbol", "call") else "AB"), value
    return None


def ratio_of(answer: Answer) -> tuple[Sequence[Answer], Relation] | None:
    """The names, which may lack, and the ratio of "1:2" and "V_1:V_2 = 1:2"."""
    if not isinstance(answer, Relation) or ":" not in answer.signs:
        return None
    half = len(answer.signs) // 2
    if answer.signs == (*(":",) * half, "=", *(":",) * half):
        return answer.sides[: half + 1], Relation(answer.sides[half + 1 :], answer.signs[:half])
    return ((), answer) if set(answer.signs) == {":"} else None


def may_be_time(ratio: Relation) -> bool:
    """Whether what is written with colons, such as "5:30", may be a time of day."""
    return all(
        isinstance(side, Value) and side.tree[0] == "number" and 10 <= side.tree[1] < 60
        for side in ratio.sides[1:]
    )


def is_function(name: str, value: Answer) -> bool:
    """Whether the name says what it depends on: f(x), or a_n of an n that occurs."""
    _, _, index = name.partition("_")
    return name.startswith("of ") or (len(index) == 1 and index in letters(value))


def is_number(answer: Answer) -> bool:
    """Whether there are no letters in it."""
    return not isinstance(answer, Relation) and not letters(answer) - {"\\pi", "e", "i"}


def calculates(answer: Relation) -> bool:
    """Whether something is computed: "3 + 4 = 7", "7 = 3 + 4"; "7 = 7" says nothing."""
    first, *others = answer.sides
    if not isinstance(first, Value) or first.tree[0] != "number":
        return isinstance(first, Value)
    is_exact = set(answer.signs) == {"="} and all(map(is_number, others))
    return is_exact and any(isinstance(x, Value) and x.tree[0] != "number" for x in others)


def oriented(relation: Relation) -> Relation:
    """Greater than as less than, with the sides the other way round."""
    if relation.signs and all(sign in _TURNED for sign in relation.signs):
        signs = tuple(_TURNED[sign] for sign in reversed(relation.signs))
        return Relation(relation.sides[::-1], signs)
    return relation

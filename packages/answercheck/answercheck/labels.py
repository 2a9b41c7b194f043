"""Names on a side of an equation: "x = 5", "f(x) = 2x", "AB = 3"."""

from collections.abc import Sequence

from answercheck.kinds import Answer, Collection, Region, Relation, Row, Text, Value, variable_of
from answercheck.trees import Tree, symbols

_INDICES = {"j", "k", "n", "m", "l"}  # beside them, i counts


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
    parts: Sequence[Answer] = answer.sides if isinstance(answer, Relation) else ()
    parts = answer.parts if isinstance(answer, Row | Collection) else parts
    return frozenset().union(*map(letters, parts))


def is_label(side: Answer) -> bool:
    """What a value may be called: a letter, f(x), P(A), the segment AB, a word."""
    if not isinstance(side, Value) or side.unit:
        return isinstance(side, Text)
    tree = side.tree
    if tree[0] == "symbol":
        return tree[1] not in ("\\pi", "e")
    if tree[0] == "call":
        is_length = tree[1] == "abs" and is_segment(tree[2])
        return tree[1].startswith("of ") or tree[1] == "det" or is_length
    return is_segment(tree)


def is_segment(tree: Tree) -> bool:
    """AB, or ABC."""
    return tree[0] == "mul" and all(
        factor[0] == "symbol" and len(factor[1]) == 1 and factor[1].isupper() for factor in tree[1:]
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
            return (name.tree[1] if name.tree[0] in ("symbol", "call") else "AB"), value
    return None


def is_function(name: str, value: Answer) -> bool:
    """Whether the name says what it depends on: f(x), or a_n of an n that occurs."""
    _, _, index = name.partition("_")
    return name.startswith("of ") or (len(index) == 1 and index in letters(value))


def is_number(answer: Answer) -> bool:
    """Whether there are no letters in it."""
    return not isinstance(answer, Relation) and not letters(answer) - {"\\pi", "e", "i"}


def calculates(answer: Relation) -> bool:
    """Whether something is computed: "3 + 4 = 7", "7 = 3 + 4"; "7 = 7" says nothing."""
    kinds = [side.tree[0] if isinstance(side, Value) else "" for side in answer.sides]
    if kinds[0] not in ("number", "infinity"):
        return kinds[0] != ""
    is_exact = set(answer.signs) == {"="} and all(map(is_number, answer.sides))
    return is_exact and any(kind not in ("", "number", "infinity") for kind in kinds)

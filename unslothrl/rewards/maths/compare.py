"""Whether an answer that was read is the gold answer.

Kinds that cannot be the same are refused; parts are compared one by one. docs/rewards.md has the
rules, tests/answers has what they mean.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from unslothrl.rewards.maths import regions, units, values
from unslothrl.rewards.maths.kinds import (
    Answer,
    Cases,
    Matrix,
    Mixed,
    Region,
    Relation,
    Row,
    Several,
    Text,
    Value,
)
from unslothrl.rewards.maths.reader import interval_of, intervals_of, variable_of
from unslothrl.rewards.maths.tree import MINUS_ONE, Tree, add, mul, negative, symbols

CLOSE = Fraction(1, 10**6)  # see `rounds_to`
_INDICES = {"j", "k", "n", "m", "l"}  # beside them, i counts
_SYMMETRIC = {"=", "ne", "approx", "sim", "parallel", "perp", "cong"}
_TURNED = {">": "<", "ge": "le"}


def matches(answer: Answer, gold: Answer) -> bool:
    """Whether `answer` is right. Unreadable where that cannot be decided."""
    return Comparison(is_imaginary(gold)).same(answer, gold)


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
    if isinstance(answer, Value):
        return symbols(answer.tree)
    parts: Sequence[Answer] = ()
    if isinstance(answer, Row | Several | Mixed):
        parts = answer.parts
    elif isinstance(answer, Relation):
        parts = answer.sides
    elif isinstance(answer, Matrix | Cases):
        parts = [one for row in answer.rows for one in row]
    return frozenset().union(*map(letters, parts))


def single(answer: Answer) -> Answer:
    """The only element of a set or list as it is; of a set of sets it stays an element."""
    if not isinstance(answer, Several) or len(set(answer.parts)) != 1:
        return answer
    only = answer.parts[0]
    return only if isinstance(only, Value | Relation | Text | Row) else answer


class Comparison:
    """`imaginary`: i squared is -1, in the answer as in the gold answer."""

    def __init__(self, imaginary: bool):
        self.imaginary = imaginary

    def same(self, answer: Answer, gold: Answer) -> bool:
        answer, gold = single(answer), single(gold)
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            return self.relations(answer, gold)
        if isinstance(gold, Region) or isinstance(answer, Region):
            return self.regions(answer, gold)
        if isinstance(gold, Several) or isinstance(answer, Several):
            return self.several(answer, gold)
        if isinstance(gold, Text) or isinstance(answer, Text):
            return texts(answer, gold)
        if isinstance(gold, Row) and isinstance(answer, Matrix):
            answer = column(answer)
        elif isinstance(gold, Matrix) and isinstance(answer, Row):
            gold = column(gold)
        if type(answer) is not type(gold):
            return False
        return self.alike(answer, gold)

    def alike(self, answer: Answer, gold: Answer) -> bool:
        """Two of one kind."""
        if isinstance(answer, Value) and isinstance(gold, Value):
            return self.values(answer, gold)
        if isinstance(answer, Row) and isinstance(gold, Row):
            brackets = (answer.opening, answer.closing) == (gold.opening, gold.closing)
            return brackets and self.in_order(answer.parts, gold.parts)
        if isinstance(answer, Mixed) and isinstance(gold, Mixed):
            return self.in_order(answer.parts, gold.parts)
        if isinstance(answer, Matrix) and isinstance(gold, Matrix):
            return len(answer.rows) == len(gold.rows) and all(
                self.in_order(a, b) for a, b in zip(answer.rows, gold.rows, strict=True)
            )
        if isinstance(answer, Cases) and isinstance(gold, Cases):
            return self.any_order(
                [Row("", row, "") for row in answer.rows], [Row("", row, "") for row in gold.rows]
            )
        return answer == gold  # Based, Infinity, Nothing, Literal

    def in_order(self, answers: Sequence[Answer], golds: Sequence[Answer]) -> bool:
        return len(answers) == len(golds) and all(map(self.same, answers, golds))

    def any_order(self, answers: Sequence[Answer], golds: Sequence[Answer]) -> bool:
        """Each is among the others; repetitions do not count."""

        def element(a: Answer, g: Answer) -> bool:
            """{1} is not 1 where both are elements."""
            return isinstance(a, Several) == isinstance(g, Several) and self.same(a, g)

        return all(any(element(a, g) for a in answers) for g in golds) and all(
            any(element(a, g) for g in golds) for a in answers
        )

    def equal(self, a: Tree, b: Tree) -> bool:
        return values.equal(a, b, self.imaginary)

    def values(self, answer: Value, gold: Value) -> bool:
        if gold.unit != answer.unit:
            answer, gold = with_units(answer, gold)
        other = answer.unit and answer.unit != gold.unit
        if other and (gold.unit or marked(gold.tree) or not units.is_known(answer.unit)):
            return False
        if gold.unit and not answer.unit and marked(answer.tree):
            return False
        if self.equal(answer.tree, gold.tree):
            return True
        if marked(gold.tree) == "percent" and not marked(answer.tree):
            return self.equal(("call", "percent", answer.tree), gold.tree)
        return gold.rounded and rounds_to(answer.tree, gold.tree)

    def several(self, answer: Answer, gold: Answer) -> bool:
        """Sets and lists. A list of two intervals is their union."""
        if isinstance(answer, Several) and isinstance(gold, Several):
            if not any(isinstance(one, Relation) for one in gold.parts) and mixes(answer):
                return False
            named = any(isinstance(one, Relation) for one in answer.parts)
            if mixes(gold) and not named:  # "1, 2" beside "x = 1, y = 2"
                return self.in_order(answer.parts, gold.parts)
            return self.any_order(answer.parts, gold.parts)
        if isinstance(gold, Several) and isinstance(answer, Row):
            return self.named_in_order(gold, answer)
        if isinstance(answer, Several) and isinstance(gold, Row):
            return self.named_in_order(answer, gold)
        return False

    def named_in_order(self, named: Several, row: Row) -> bool:
        """ "x = 1, y = 2" beside "(1, 2)"."""
        pairs = [label_of(one) for one in named.parts]
        names = [pair[0] for pair in pairs if pair is not None]
        if (
            len(names) != len(pairs)
            or names != sorted(set(names))
            or row.opening + row.closing != "()"
        ):
            return False
        return self.in_order([pair[1] for pair in pairs if pair is not None], row.parts)

    def regions(self, answer: Answer, gold: Answer) -> bool:
        kinds = Region | Row | Several
        if not (isinstance(answer, kinds) and isinstance(gold, kinds)):
            return False
        if len(region_names(answer) | region_names(gold)) > 1:
            return False
        a, b = region_of(answer), region_of(gold)
        return a is not None and b is not None and regions.same(a, b)

    def relations(self, answer: Answer, gold: Answer) -> bool:
        if isinstance(answer, Relation) and isinstance(gold, Relation):
            return self.both_relations(answer, gold)
        if isinstance(answer, Relation):
            return self.named(answer, gold)
        assert isinstance(gold, Relation)
        pair = label_of(gold)
        if pair is None or not (is_function(*pair) or is_number(pair[1])):
            return self.tuple_of_names(gold, answer)
        return self.same(answer, pair[1])

    def tuple_of_names(self, gold: Relation, answer: Answer) -> bool:
        """ "(x, y) = (1, 2)" beside "(1, 2)" or "x = 1, y = 2"."""
        if gold.signs != ("=",) or not isinstance(gold.sides[0], Row):
            return False
        names, row = gold.sides[0], gold.sides[1]
        if not isinstance(row, Row) or any(variable_of(one) is None for one in names.parts):
            return False
        if isinstance(answer, Several) and len(names.parts) == len(row.parts):
            pairs = zip(names.parts, row.parts, strict=True)
            return self.any_order(answer.parts, [Relation(pair, ("=",)) for pair in pairs])
        return self.same(answer, row)

    def named(self, answer: Relation, gold: Answer) -> bool:
        """ "x = 5" beside 5; also "x = 10/2 = 5", "10/2 = 5" and "\\sqrt2 \\approx 1.414"."""
        if set(answer.signs) <= {"=", "approx"}:
            sides, signs = answer.sides, answer.signs
            first = sides[0]
            label = is_label(first) and not (bound(first) & letters(gold))
            names = isinstance(first, Row) and all(map(variable_of, first.parts))
            exact = signs[0] == "=" or (isinstance(gold, Value) and gold.rounded)
            if (label and exact) or names:
                sides, signs = sides[1:], signs[1:]
            elif not isinstance(first, Value) or first.tree[0] == "number":
                return False
            if not isinstance(gold, Value) and signs:
                return False
            return self.same(sides[0], gold) and all(
                self.same(side, gold) if sign == "=" else near(side, gold)
                for side, sign in zip(sides[1:], signs, strict=True)
            )
        return False

    def both_relations(self, answer: Relation, gold: Relation) -> bool:
        answer, gold = oriented(answer), oriented(gold)
        if answer.signs != gold.signs:
            return set(answer.signs) == {"="} == set(gold.signs) and self.chain(answer, gold)
        if self.sides(answer, gold, literally):
            return True
        if answer.signs in (("=",), ("<",), ("le",), ("ne",)):
            trees = [tree for one in (answer, gold) for tree in map(plain_tree, one.sides) if tree]
            if len(trees) == 4:
                return self.equations(trees[0], trees[1], trees[2], trees[3], gold.signs[0])
            if answer.signs == ("=",):
                return self.labels(answer, gold)
        if set(answer.signs) <= {"=", "<", "le", "ne"}:
            return False
        return self.sides(answer, gold, self.same)

    def labels(self, answer: Relation, gold: Relation) -> bool:
        """ "A = (1, 2)": the same name, and the same value."""
        for a in (answer.sides, answer.sides[::-1]):
            for g in (gold.sides, gold.sides[::-1]):
                if literally(a[0], g[0]) and self.same(a[1], g[1]):
                    return True
        if all(isinstance(side, Row) for side in (*answer.sides, *gold.sides)):
            return self.in_order(answer.sides, gold.sides)
        return False

    def chain(self, answer: Relation, gold: Relation) -> bool:
        """ "x = 10/2 = 5" beside "x = 5"."""
        if len(gold.sides) != 2 or len(answer.sides) < 3 or not is_label(gold.sides[0]):
            return False
        return literally(answer.sides[0], gold.sides[0]) and all(
            self.same(side, gold.sides[1]) for side in answer.sides[1:]
        )

    def sides(self, answer: Relation, gold: Relation, same) -> bool:
        """Side by side; those of one symmetric relation in any order."""
        if len(answer.sides) != len(gold.sides):
            return False
        if len(set(answer.sides)) == 1 < len(set(gold.sides)):
            return False  # "72 = 72" for "8 * 9 = 72"
        orders = [answer.sides]
        if set(answer.signs) <= _SYMMETRIC and len(set(answer.signs)) == 1:
            orders.append(answer.sides[::-1])
        return any(all(map(same, order, gold.sides)) for order in orders)

    def equations(self, a: Tree, b: Tree, c: Tree, d: Tree, sign: str) -> bool:
        """Whether a = b (or <, <=) says the same as c = d: the differences of their sides are
        proportional, and not constant, or else anything true would be any other truth."""
        answer, gold = add(a, negative(b)), add(c, negative(d))
        factor = values.ratio(answer, gold, self.imaginary)
        if factor is None or not self.varies(gold):
            return False
        if sign in ("=", "ne"):
            return True
        return not isinstance(factor, complex) and factor > 0

    def varies(self, tree: Tree) -> bool:
        """Whether an expression takes different values."""
        names = values.variables(tree, imaginary=self.imaginary)
        if not names:
            return False
        return values.ratio(tree, ("number", Fraction(1)), self.imaginary) is None


def marked(tree: Tree) -> str:
    """ "percent" or "degree" where the number is one of these."""
    if tree[0] == "mul" and tree[1] == ("number", Fraction(-1)) and len(tree) == 3:
        tree = tree[2]
    return tree[1] if tree[0] == "call" and tree[1] in ("percent", "degree") else ""


def plain_tree(side: Answer) -> Tree | None:
    return side.tree if isinstance(side, Value) and not side.unit else None


def is_function(name: str, value: Answer) -> bool:
    """Whether the name says what it depends on: f(x), or a_n of an n that occurs."""
    _, _, index = name.partition("_")
    return name.startswith("of ") or (len(index) == 1 and index in letters(value))


def is_number(answer: Answer) -> bool:
    """Whether there are no letters in it."""
    return not isinstance(answer, Relation) and not letters(answer) - {"\\pi", "e", "i"}


def literally(a: Answer, b: Answer) -> bool:
    """The same formula in any order of terms and factors, and of numbers in any notation."""
    if isinstance(a, Value) and isinstance(b, Value):
        return a.unit == b.unit and folded(a.tree) == folded(b.tree)
    if isinstance(a, Text) and isinstance(b, Text):
        return texts(a, b)
    return a == b


def folded(tree: Tree) -> Tree:
    """With "3/2" as the number that it is; "1 + 1" and "8 \\cdot 9" stay."""
    if tree[0] in ("number", "symbol"):
        return tree
    head = 2 if tree[0] == "call" else 1
    parts = [folded(one) for one in tree[head:]]
    if tree[0] == "add":
        return add(*parts)
    if tree[0] == "mul" and is_fraction(tree):
        return ("number", values.rational(tree, {}))
    return mul(*parts) if tree[0] == "mul" else (*tree[:head], *parts)


def is_fraction(tree: Tree) -> bool:
    """ "-3", "3/2" in lowest terms; not "2 * 3" or "6/3"."""
    factors = [one for one in tree[1:] if one != MINUS_ONE]
    tops = [one[1] for one in factors if one[0] == "number"]
    bottoms = [one[1][1] for one in factors if one[0] == "pow" and one[1][0] == "number"]
    if len(tops) + len(bottoms) != len(factors) or len(tops) > 1 or len(bottoms) > 1:
        return False
    if any(one[0] == "pow" and one[2] != MINUS_ONE for one in factors) or not all(bottoms):
        return False
    top, bottom = (tops or [Fraction(1)])[0], (bottoms or [Fraction(1)])[0]
    return top.denominator == bottom.denominator == math.gcd(int(top), int(bottom)) == 1


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
    factors = [one[1] for one in tree[1:] if one[0] == "symbol"] if tree[0] == "mul" else []
    return len(factors) == len(tree) - 1 >= 2 and all(
        len(one) == 1 and one.isupper() for one in factors
    )


def bound(name: Answer) -> frozenset[str]:
    """The letters that may not occur in what a name stands for: those of f(x) may."""
    if isinstance(name, Value) and name.tree[0] == "call" and name.tree[1].startswith("of "):
        return frozenset()
    return letters(name)


def mixes(answer: Several) -> bool:
    """Whether its parts are values of different variables: "x = 1, y = 2"; x_1 and x_2 are one."""
    names = {pair[0].partition("_")[0] for one in answer.parts if (pair := label_of(one))}
    return len(names) > 1


def label_of(answer: Answer) -> tuple[str, Answer] | None:
    """The name and the value of "x = 5" and "5 = x"."""
    if not isinstance(answer, Relation) or answer.signs not in (("=",), ("approx",)):
        return None
    for name, value in (answer.sides, answer.sides[::-1]):
        if is_label(name) and not is_label(value) and not (bound(name) & letters(value)):
            if isinstance(name, Text):
                return name.words, value
            assert isinstance(name, Value)
            tree = name.tree
            return (tree[1] if tree[0] in ("symbol", "call") else "AB"), value
    return None


def oriented(relation: Relation) -> Relation:
    """Greater than as less than, with the sides the other way round."""
    if relation.signs and all(sign in _TURNED for sign in relation.signs):
        signs = tuple(_TURNED[sign] for sign in reversed(relation.signs))
        return Relation(relation.sides[::-1], signs)
    return relation


def region_of(answer: Answer) -> regions.Intervals | None:
    if isinstance(answer, Row):
        return interval_of(answer)
    if isinstance(answer, Several) and not all(
        isinstance(one, Row | Region) for one in answer.parts
    ):
        return None
    return intervals_of(answer)


def region_names(answer: Answer) -> frozenset[str]:
    """The variables of which an answer names regions."""
    if isinstance(answer, Region):
        return frozenset((answer.variable,) if answer.variable else ())
    parts = answer.parts if isinstance(answer, Several) else ()
    return frozenset().union(*map(region_names, parts))


def column(matrix: Matrix) -> Answer:
    """A matrix of one column as a vector in brackets."""
    if len(matrix.rows) > 1 and all(len(row) == 1 for row in matrix.rows):
        return Row("(", tuple(row[0] for row in matrix.rows), ")")
    return matrix


def with_units(answer: Value, gold: Value) -> tuple[Value, Value]:
    """Where one has a unit and the other ends in letters, these are its unit: "15 m"."""
    if gold.unit and not answer.unit:
        found = units.of_product(answer.tree)
        if found is not None:
            return Value(found[0], found[1], answer.rounded), gold
    if answer.unit and not gold.unit:
        found = units.of_product(gold.tree)
        if found is not None:
            return answer, Value(found[0], found[1], gold.rounded)
    return answer, gold


def texts(answer: Answer, gold: Answer) -> bool:
    """Words without regard to case and spaces; a letter that is not marked as text has its case."""
    a, b = written(answer), written(gold)
    if a is None or b is None:
        return False
    if isinstance(gold, Text) or len(b) > 2:
        return a.casefold() == b.casefold()
    return a == b


def written(answer: Answer) -> str | None:
    """A text, a letter or a product of letters, without spaces; "(B)" as "B"."""
    if isinstance(answer, Text):
        text = "".join(answer.words.split())
        return text[1:-1] if len(text) == 3 and text[0] == "(" and text[2] == ")" else text
    if isinstance(answer, Value) and not answer.unit and answer.tree[0] == "symbol":
        return answer.tree[1]
    return None


def rounds_to(answer: Tree, gold: Tree) -> bool:
    """Whether a number is a gold decimal to six digits after the point, and to a millionth of it
    if that is less."""
    if values.variables(answer, imaginary=False):
        return False
    try:
        exact = values.rational(gold, {})
        try:
            found = values.rational(answer, {})
        except values.NotRational:
            value, _ = values.evaluated(answer, {}, values.POINT_PRECISION, False, True)
            found = as_fraction(value)
    except ArithmeticError:
        return False
    return close(found, exact)


def close(found: Fraction, exact: Fraction) -> bool:
    difference = abs(found - exact)
    return difference <= CLOSE / 2 and difference <= CLOSE * max(abs(found), abs(exact))


def as_fraction(value) -> Fraction:
    sign, mantissa, exponent, _ = value._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def near(side: Answer, gold: Answer) -> bool:
    """Whether a value after "approximately" is within a hundredth of the gold answer."""
    if not (isinstance(side, Value) and isinstance(gold, Value)):
        return False
    trees = side.tree, gold.tree
    if any(values.variables(tree, imaginary=False) for tree in trees):
        return False
    try:
        a, b = (
            values.evaluated(tree, {}, values.POINT_PRECISION, False, True)[0] for tree in trees
        )
    except values.Undefined:
        return False
    return bool(abs(a - b) * 100 <= abs(b))

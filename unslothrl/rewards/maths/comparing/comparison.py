"""Compares an answer with the gold answer, kind by kind.

Kinds that cannot be the same are refused; parts are compared one by one. docs/rewards.md has the
rules, bench/answers has what they mean.
"""

import itertools
from collections.abc import Sequence

from unslothrl.rewards.maths import regions
from unslothrl.rewards.maths.comparing.formulas import literally, plain_tree, same_equation
from unslothrl.rewards.maths.comparing.labels import (
    bound_letters,
    calculates,
    is_function,
    is_imaginary,
    is_label,
    is_number,
    label_of,
    letters,
    may_be_time,
    mixes,
    oriented,
    ratio_of,
)
from unslothrl.rewards.maths.comparing.quantities import near, same_quantity
from unslothrl.rewards.maths.comparing.texts import same_text
from unslothrl.rewards.maths.expressions.tree import divided
from unslothrl.rewards.maths.intervals import region_names, region_of
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

_SYMMETRIC = {"=", "ne", "approx", "sim", "parallel", "perp", "cong"}


def matches(answer: Answer, gold: Answer) -> bool:
    """Whether `answer` is right. Unreadable where that cannot be decided."""
    return Comparison(is_imaginary(gold)).same(answer, gold)


def single(answer: Answer) -> Answer:
    """The only element of a set or list as it is; of a set of sets it stays an element."""
    if not isinstance(answer, Collection):
        return answer
    if len(set(answer.parts) if answer.is_set else answer.parts) != 1:
        return answer
    only = answer.parts[0]
    return only if isinstance(only, Value | Relation | Text | Row) else answer


def column(matrix: Matrix) -> Answer:
    """A matrix of one column as a vector in brackets."""
    if len(matrix.rows) > 1 and all(len(row) == 1 for row in matrix.rows):
        return Row("(", tuple(row[0] for row in matrix.rows), ")")
    return matrix


def quotients_of(ratio: Relation) -> list[Answer]:
    """Of each two sides; none where a side is no number or expression."""
    trees = [tree for side in ratio.sides if (tree := plain_tree(side)) is not None]
    if len(trees) < len(ratio.sides):
        return []
    return [Value(divided(a, b)) for a, b in itertools.pairwise(trees)]


class Comparison:
    """`imaginary`: i squared is -1, in the answer as in the gold answer."""

    def __init__(self, imaginary: bool):
        self.imaginary = imaginary

    def same(self, answer: Answer, gold: Answer) -> bool:
        """Whether an answer, or a part of it, is the gold answer or its part. Unreadable."""
        answer, gold = single(answer), single(gold)
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            return self.relations(answer, gold)
        if isinstance(gold, Region) or isinstance(answer, Region):
            return self.regions(answer, gold)
        if isinstance(gold, Collection) or isinstance(answer, Collection):
            return self.collections(answer, gold)
        if isinstance(gold, Text) or isinstance(answer, Text):
            return same_text(answer, gold)
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
            return same_quantity(answer, gold, self.imaginary)
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
        return answer == gold  # BasedNumber, Infinity, EmptySet, Literal

    def in_order(self, answers: Sequence[Answer], golds: Sequence[Answer]) -> bool:
        return len(answers) == len(golds) and all(map(self.same, answers, golds))

    def any_order(self, answers: Sequence[Answer], golds: Sequence[Answer]) -> bool:
        """Each is one of the others, and each of these is taken once: repetitions count."""

        def element(a: Answer, g: Answer) -> bool:
            """{1} is not 1 where both are elements."""
            return isinstance(a, Collection) == isinstance(g, Collection) and self.same(a, g)

        left = list(golds)
        for answer in answers:
            same = next((gold for gold in left if element(answer, gold)), None)
            if same is None:
                return False
            left.remove(same)
        return not left

    def different(self, parts: Sequence[Answer]) -> Sequence[Answer]:
        """The elements of a set."""
        found: list[Answer] = []
        for part in parts:
            if not any(type(part) is type(each) and self.same(part, each) for each in found):
                found.append(part)
        return found

    def collections(self, answer: Answer, gold: Answer) -> bool:
        """Sets and lists. A list of two intervals is their union."""
        if isinstance(answer, Collection) and isinstance(gold, Collection):
            if not any(isinstance(part, Relation) for part in gold.parts) and mixes(answer):
                return False
            named = any(isinstance(part, Relation) for part in answer.parts)
            if mixes(gold) and not named:  # "1, 2" beside "x = 1, y = 2"
                return self.in_order(answer.parts, gold.parts)
            are_points = all(isinstance(part, Row) for part in gold.parts)
            given: Sequence[Answer] = answer.parts
            expected: Sequence[Answer] = gold.parts
            if answer.is_set or gold.is_set or are_points:
                given = self.different(given)
            if gold.is_set or are_points:
                expected = self.different(expected)
            return self.any_order(given, expected)
        if isinstance(gold, Collection) and isinstance(answer, Row):
            return self.named_in_order(gold, answer)
        if isinstance(answer, Collection) and isinstance(gold, Row):
            return self.named_in_order(answer, gold)
        return False

    def named_in_order(self, named: Collection, row: Row) -> bool:
        """ "x = 1, y = 2" beside "(1, 2)"."""
        pairs = [label_of(part) for part in named.parts]
        names = [pair[0] for pair in pairs if pair is not None]
        if (
            len(names) != len(pairs)
            or names != sorted(set(names))
            or row.opening + row.closing != "()"
        ):
            return False
        return self.in_order([pair[1] for pair in pairs if pair is not None], row.parts)

    def regions(self, answer: Answer, gold: Answer) -> bool:
        """At least one of the two is a region; intervals may be written as rows and lists."""
        kinds = Region | Row | Collection
        if not (isinstance(answer, kinds) and isinstance(gold, kinds)):
            return False
        if len(region_names(answer) | region_names(gold)) > 1:
            return False
        a, b = region_of(answer), region_of(gold)
        return a is not None and b is not None and regions.same(a, b)

    def relations(self, answer: Answer, gold: Answer) -> bool:
        """At least one of the two is a relation."""
        if (ratio := ratio_of(gold)) is not None:
            return self.ratios(answer, *ratio)
        if isinstance(answer, Relation) and isinstance(gold, Relation):
            return self.both_relations(answer, gold)
        if isinstance(answer, Relation):
            return self.named(answer, gold)
        assert isinstance(gold, Relation)
        pair = label_of(gold)
        if pair is None or not (is_function(*pair) or is_number(pair[1])):
            return self.tuple_of_names(gold, answer)
        return self.same(answer, pair[1])

    def ratios(self, answer: Answer, names: Sequence[Answer], gold: Relation) -> bool:
        """ "1:2", "2:4", "1 to 2", "a:b = 1:2" or "1/2" beside "1:2" or "a:b = 1:2"."""
        if isinstance(answer, Relation) and set(answer.signs) == {"to"}:
            answer = Relation(answer.sides, (":",) * len(answer.signs))
        quotients = quotients_of(gold)
        if (ratio := ratio_of(answer)) is None:
            return isinstance(answer, Value) and self.in_order([answer], quotients)
        if ratio[0] and names and ratio[0] != names:
            return False
        if quotients and not may_be_time(gold):
            return self.in_order(quotients_of(ratio[1]), quotients)
        return self.sides(ratio[1], gold, self.same)

    def tuple_of_names(self, gold: Relation, answer: Answer) -> bool:
        """ "(x, y) = (1, 2)" beside "(1, 2)" or "x = 1, y = 2"."""
        if gold.signs != ("=",) or not isinstance(gold.sides[0], Row):
            return False
        names, row = gold.sides[0], gold.sides[1]
        if not isinstance(row, Row) or any(variable_of(name) is None for name in names.parts):
            return False
        if isinstance(answer, Collection) and len(names.parts) == len(row.parts):
            pairs = zip(names.parts, row.parts, strict=True)
            return self.any_order(answer.parts, [Relation(pair, ("=",)) for pair in pairs])
        return self.same(answer, row)

    def named(self, answer: Relation, gold: Answer) -> bool:
        """ "x = 5" beside 5; also "x = 10/2 = 5", "10/2 = 5" and "\\sqrt2 \\approx 1.414"."""
        if set(answer.signs) <= {"=", "approx"}:
            sides, signs = answer.sides, answer.signs
            first = sides[0]
            label = is_label(first) and not (bound_letters(first) & letters(gold))
            names = isinstance(first, Row) and all(map(variable_of, first.parts))
            exact = signs[0] == "=" or (isinstance(gold, Value) and gold.rounded)
            if (label and exact) or names:
                sides, signs = sides[1:], signs[1:]
            elif not calculates(answer):
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
            a, b = map(plain_tree, answer.sides)
            c, d = map(plain_tree, gold.sides)
            if a and b and c and d:
                return same_equation((a, b), (c, d), gold.signs[0], self.imaginary)
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

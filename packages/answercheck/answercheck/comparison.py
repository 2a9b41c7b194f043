"""Compares an answer with the gold answer, kind by kind: kinds that cannot be the same are refused,
parts are compared one by one. docs/rewards.md of unslothrl has the rules, bench/written.jsonl what
they mean."""

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from answercheck import regions
from answercheck.kinds import Answer, Collection, Region, Relation, Row, Text, Value
from answercheck.quantities import of_product
from answercheck.trees import MINUS_ONE, Tree, add, divided, mul, negative, number, symbols
from answercheck.values import POINT_PRECISION, equal, exact, proportional, rounded
from answercheck.vocabulary import KNOWN

_SYMMETRIC = {"=", "ne", "approx", "sim", "parallel", "perp", "cong"}
CLOSE = Fraction(1, 10**6)  # see `rounds_to`
_IN_BRACKETS = re.compile(r"\A\((.)\)\Z")
ENOUGH, MOST_PLACES = 15, 40  # digits of a decimal that stands for a fraction
_INDICES = {"j", "k", "n", "m", "l"}  # beside them, i counts


def single(answer: Answer) -> Answer:
    """The only element of a set or list as it is; of a set of sets it stays an element."""
    if isinstance(answer, Collection):
        parts = dict.fromkeys(answer.parts) if answer.is_set else answer.parts
        if len(parts) == 1 and isinstance(answer.parts[0], Value | Relation | Text | Row):
            return answer.parts[0]
    return answer


def column(row: Row) -> Row:
    if row.kind != "matrix" or len(row.parts) < 2:
        return row
    cells = tuple(cell for each in row.parts if isinstance(each, Row) for cell in each.parts)
    return Row("()", cells) if len(cells) == len(row.parts) else row


def quotients_of(ratio: Row) -> list[Answer]:
    """Of each two parts; none where a part is no number or expression."""
    trees = [tree for part in ratio.parts if (tree := part.plain) is not None]
    are_plain = len(trees) == len(ratio.parts)
    return [Value(divided(a, b)) for a, b in itertools.pairwise(trees)] if are_plain else []


def may_be_time(ratio: Row) -> bool:
    """Whether what is written with colons, such as "5:30", may be a time of day."""
    return all(
        isinstance(part, Value) and part.tree[0] == "number" and 10 <= part.tree[1] < 60
        for part in ratio.parts[1:]
    )


class Comparison:
    """`imaginary`: i squared is -1, in the answer as in the gold answer."""

    def __init__(self, imaginary: bool):
        self.imaginary = imaginary

    def same(self, answer: Answer, gold: Answer) -> bool:
        answer, gold = single(answer), single(gold)
        kinds = {type(answer), type(gold)}
        if isinstance(answer, Relation):
            return self.named(answer, gold)
        if isinstance(gold, Relation):
            return self.unnamed(answer, gold)
        if Region in kinds:
            names = regions.region_names(answer) | regions.region_names(gold)
            a, b = regions.intervals_of(answer), regions.intervals_of(gold)
            return len(names) < 2 and a is not None and b is not None and regions.same(a, b)
        if Collection in kinds:
            return self.collections(answer, gold)
        if Text in kinds:
            return same_text(answer, gold)
        if isinstance(answer, Value) and isinstance(gold, Value):
            return same_quantity(answer, gold, self.imaginary)
        if isinstance(gold, Row) and gold.kind == "ratio" and isinstance(answer, Value):
            return self.in_order([answer], quotients_of(gold))
        if isinstance(answer, Row) and isinstance(gold, Row):
            return self.rows(answer, gold)
        return answer == gold

    def rows(self, answer: Row, gold: Row) -> bool:
        if answer.kind != gold.kind:
            answer, gold = column(answer), column(gold)
        elif gold.kind == "ratio" and not may_be_time(gold) and quotients_of(gold):
            return self.in_order(quotients_of(answer), quotients_of(gold))
        compare = self.any_order if gold.kind == "cases" else self.in_order
        return answer.kind == gold.kind and compare(answer.parts, gold.parts)

    def in_order(self, answers: Sequence[Answer], golds: Sequence[Answer]) -> bool:
        return len(answers) == len(golds) and all(map(self.same, answers, golds))

    def any_order(self, answers: Sequence[Answer], golds: Sequence[Answer]) -> bool:
        """Each is one of the others, and each of these is taken once: repetitions count."""
        left = list(golds)
        for answer in answers:
            same = next((gold for gold in left if self.same_element(answer, gold)), None)
            if same is None:
                return False
            left.remove(same)
        return not left

    def same_element(self, answer: Answer, gold: Answer) -> bool:
        """{1} is not 1 where both are elements."""
        are_sets = isinstance(answer, Collection), isinstance(gold, Collection)
        return are_sets[0] == are_sets[1] and self.same(answer, gold)

    def collections(self, answer: Answer, gold: Answer) -> bool:
        for one, row in ((gold, answer), (answer, gold)):
            if isinstance(one, Collection) and isinstance(row, Row):  # "x = 1, y = 2", "(1, 2)"
                names, values = zip(*labels_of(one), strict=True) if labels_of(one) else ((), ())
                are_names = len(values) == len(one.parts) and [*names] == sorted(set(names))
                return row.kind == "()" and are_names and self.in_order(values, row.parts)
        if not (isinstance(answer, Collection) and isinstance(gold, Collection)):
            return False
        if not any(isinstance(part, Relation) for part in gold.parts) and mixes(answer):
            return False
        is_named = any(isinstance(part, Relation) for part in answer.parts)
        if mixes(gold) and not is_named:  # "1, 2" beside "x = 1, y = 2"
            return self.in_order(answer.parts, gold.parts)
        if not gold.is_set and not all(isinstance(part, Row) for part in gold.parts):
            given = dict.fromkeys(answer.parts) if answer.is_set else answer.parts
            return self.any_order([*given], gold.parts)
        same = [[self.same_element(a, g) for a in answer.parts] for g in gold.parts]
        return all(map(any, same)) and all(map(any, zip(*same, strict=True)))

    def unnamed(self, answer: Answer, gold: Relation) -> bool:
        """5 beside "x = 5"."""
        if pair := label_of(gold):
            name, value = pair
            _, _, index = name.partition("_")  # a_n is a function of an n that occurs
            is_function = name.startswith("of ") or (len(index) == 1 and index in letters(value))
            if is_function or is_number(value):
                return self.same(answer, value)
        # "(x, y) = (1, 2)" beside "(1, 2)"; "a:b = 1:2" beside "1:2"
        names, row = gold.sides[0], gold.sides[1]
        if gold.signs != ("=",) or not (isinstance(names, Row) and isinstance(row, Row)):
            return False
        return all(map(is_label, names.parts)) and self.same(answer, row)

    def named(self, answer: Relation, gold: Answer) -> bool:
        """ "x = 5" beside 5; also "x = 10/2 = 5", "10/2 = 5" and "\\sqrt2 \\approx 1.414"."""
        if isinstance(gold, Relation):
            return self.both_relations(answer, gold)
        if set(answer.signs) == {"to"} and isinstance(gold, Row) and gold.kind == "ratio":
            return self.same(Row("ratio", answer.sides), gold)
        if not set(answer.signs) <= {"=", "approx"}:
            return False
        sides, signs = answer.sides, answer.signs
        is_name = is_label(sides[0], gold) or is_sought(sides[0], gold)
        are_names = isinstance(sides[0], Row) and all(map(is_label, sides[0].parts))
        is_exact = signs[0] == "=" or (isinstance(gold, Value) and gold.rounded)
        if (is_name and is_exact) or are_names:
            sides, signs = sides[1:], signs[1:]
        elif not calculates(answer):
            return False
        if not isinstance(gold, Value) and signs:
            return False
        return self.same(sides[0], gold) and all(
            self.same(side, gold) if sign == "=" else near(side, gold)
            for side, sign in zip(sides[1:], signs, strict=True)
        )

    def both_relations(self, answer: Relation, gold: Relation) -> bool:
        if answer.signs != gold.signs:  # "x = 10/2 = 5" beside "x = 5"
            is_chain = {*answer.signs, *gold.signs} == {"="} and len(gold.sides) == 2
            label, *values = answer.sides
            each = [Relation((label, value), ("=",)) for value in values]
            return is_chain and is_label(label) and all(self.same(part, gold) for part in each)
        if self.sides(answer, gold, literally):
            return True
        if answer.signs in (("=",), ("<",), ("le",), ("ne",)):
            a, b, c, d = (side.plain for side in (*answer.sides, *gold.sides))
            if a and b and c and d:
                difference, expected = add(a, negative(b)), add(c, negative(d))
                is_order = gold.signs[0] in ("<", "le")
                return proportional(difference, expected, self.imaginary, positive=is_order)
            return answer.signs == ("=",) and any(  # "A = (1, 2)"; "(x, y) = (1, 2)"
                (literally(name, g[0]) or (isinstance(g[0], Row) and self.same(name, g[0])))
                and self.same(value, g[1])
                for name, value in (answer.sides, answer.sides[::-1])
                for g in (gold.sides, gold.sides[::-1])
            )
        if set(answer.signs) <= {"=", "<", "le", "ne"}:
            return False
        return self.sides(answer, gold, self.same)

    def sides(
        self, answer: Relation, gold: Relation, same: Callable[[Answer, Answer], bool]
    ) -> bool:
        """Side by side; those of one symmetric relation in any order."""
        if len(set(answer.sides)) == 1 < len(set(gold.sides)):
            return False  # "72 = 72" for "8 * 9 = 72"
        orders = [answer.sides]
        if set(answer.signs) <= _SYMMETRIC and len(set(answer.signs)) == 1:
            orders.append(answer.sides[::-1])
        return any(all(map(same, order, gold.sides)) for order in orders)


def is_imaginary(gold: Answer) -> bool:
    """Whether i in the gold answer is the imaginary unit, not an index or the name of a side."""
    if isinstance(gold, Relation) and any(side.symbol == "i" for side in gold.sides):
        return False
    names = letters(gold)
    return "i" in names and not names & _INDICES


def letters(answer: Answer) -> frozenset[str]:
    if isinstance(answer, Value):
        return symbols(answer.tree)
    parts: Sequence[Answer] = answer.sides if isinstance(answer, Relation) else ()
    parts = answer.parts if isinstance(answer, Row | Collection) else parts
    return frozenset().union(*map(letters, parts))


def is_label(side: Answer, value: Answer | None = None) -> bool:
    """What a value may be called: a letter, f(x), P(A), the segment AB, a word; by nothing that
    occurs in it, but for the x of f(x)."""
    if isinstance(side, Text):
        return True
    tree = side.plain
    if tree is None or (value is not None and letters(side) & letters(value)):
        return tree is not None and tree[0] == "call" and tree[1].startswith("of ")
    if tree[0] == "symbol":
        return tree[1] not in ("\\pi", "e")
    if tree[0] == "call" and tree[1] != "abs":
        return tree[1].startswith("of ") or tree[1] == "det"
    product = tree[2] if tree[0] == "call" else tree
    return product[0] == "mul" and all(x[0] == "symbol" and x[1].isupper() for x in product[1:])


def is_sought(side: Answer, gold: Answer) -> bool:
    """What an answer may call a value as well: "m+n", "\\sin A", "\\frac{AB}{CD}", "e"."""
    (kind, *parts), names = side.plain or ("",), letters(side)
    is_free = isinstance(gold, Value) and not names & {*letters(gold), "\\pi", "i"}
    if not is_free or kind not in ("symbol", "call", "add", "mul"):
        return False
    if kind in ("symbol", "call"):
        return kind == "symbol" or (parts[0] in ("sin", "cos", "tan") and parts[1][0] == "symbol")
    above = [x for x in parts if x[0] == "symbol" and len(x[1]) == 1 and x[1] != "e"]
    if kind == "add":
        return len(set(above)) == len(parts)
    below = [x[1] for x in parts if x[0] == "pow" and x[2] == MINUS_ONE]
    is_ratio = kind == "mul" and len(below) == 1 and 0 < len(above) == len(parts) - 1
    return is_ratio and is_label(Value(mul(*above))) and is_label(Value(below[0]))


def labels_of(answer: Collection) -> list[tuple[str, Answer]]:
    return [pair for part in answer.parts if (pair := label_of(part))]


def mixes(answer: Collection) -> bool:
    """Whether its parts are values of different variables; x_1 and x_2 are the same one."""
    return len({name.partition("_")[0] for name, _ in labels_of(answer)}) > 1


def label_of(answer: Answer) -> tuple[str, Answer] | None:
    if not isinstance(answer, Relation) or answer.signs not in (("=",), ("approx",)):
        return None
    for name, value in (answer.sides, answer.sides[::-1]):
        if is_label(name, value) and not is_label(value):
            if isinstance(name, Text):
                return name.words, value
            tree = name.plain or ()
            return (tree[1] if tree[0] in ("symbol", "call") else "AB"), value
    return None


def is_number(answer: Answer) -> bool:
    return not isinstance(answer, Relation) and not letters(answer) - {"\\pi", "e", "i"}


def calculates(answer: Relation) -> bool:
    """Whether something is computed: "3 + 4 = 7", "7 = 3 + 4"; "7 = 7" says nothing."""
    kinds = [side.tree[0] if isinstance(side, Value) else "" for side in answer.sides]
    if kinds[0] not in ("number", "infinity"):
        return kinds[0] != ""
    is_exact = set(answer.signs) == {"="} and all(map(is_number, answer.sides))
    return is_exact and any(kind not in ("", "number", "infinity") for kind in kinds)


def same_quantity(answer: Value, gold: Value, imaginary: bool) -> bool:
    """Equal in value and unit; a unit or percent sign that only one has may be forgiven."""
    if gold.unit and not answer.unit:  # "15 m" beside another unit: the letters are one as well
        answer = of_product(answer)
    elif answer.unit and not gold.unit:
        gold = of_product(gold)
    mark = marked(gold.tree)
    if answer.unit and answer.unit != gold.unit:
        is_known = answer.counted or all(name in KNOWN for name, _ in answer.unit)
        if gold.unit or mark or not is_known:
            return False
    if gold.unit and not answer.unit and marked(answer.tree):
        return False
    if equal(answer.tree, gold.tree, imaginary):
        return True
    if mark == "percent" and not marked(answer.tree):
        return equal(("call", "percent", answer.tree), gold.tree, imaginary)
    if gold.rounded:
        return rounds_to(answer.tree, gold.tree)
    return answer.rounded and is_expansion(answer.tree, gold.tree)


def marked(tree: Tree) -> str:
    """ "percent" or "degree" where the number is one of these."""
    if tree[0] == "mul" and tree[1] == MINUS_ONE and len(tree) == 3:
        tree = tree[2]
    return tree[1] if tree[0] == "call" and tree[1] in ("percent", "degree") else ""


def rounds_to(answer: Tree, gold: Tree) -> bool:
    """Whether a number is a gold decimal to six digits after the point, or a millionth of it."""
    value, expected = rounded(answer, POINT_PRECISION), exact(gold)
    return value is not None and expected is not None and is_close(value, expected)


def is_expansion(answer: Tree, gold: Tree) -> bool:
    """Whether a decimal is a fraction to its last digit, of `ENOUGH` or more."""
    value, expected = exact(answer), exact(gold)
    if value is None or expected is None:
        return False
    places = next((n for n in range(MOST_PLACES) if (10**n * value).denominator == 1), MOST_PLACES)
    if abs(value) * 10**places < 10 ** (ENOUGH - 1):
        return False
    return abs(value - expected) < max(Fraction(1, 10**places), abs(expected) / 10**15)


def is_close(value: Fraction, expected: Fraction) -> bool:
    """Within half a millionth, and within a millionth of the larger."""
    difference = abs(value - expected)
    return difference <= CLOSE / 2 and difference <= CLOSE * max(abs(value), abs(expected))


def near(side: Answer, gold: Answer) -> bool:
    """Whether a value after "approximately" is within a hundredth of the gold answer."""
    if not (isinstance(side, Value) and isinstance(gold, Value)):
        return False
    a, b = (rounded(x.tree, POINT_PRECISION) for x in (side, gold))
    return a is not None and b is not None and abs(a - b) * 100 <= abs(b)


def literally(a: Answer, b: Answer) -> bool:
    """The same formula in any order of terms and factors, and of numbers in any notation."""
    if isinstance(a, Value) and isinstance(b, Value):
        return a.unit == b.unit and unfolded(a.tree) == unfolded(b.tree)
    return same_text(a, b) if isinstance(a, Text) and isinstance(b, Text) else a == b


def unfolded(tree: Tree) -> Tree:
    """With 1.5 as 3/2; "1 + 1" and "8 \\cdot 9" stay."""
    if tree == MINUS_ONE:
        return tree
    if tree[0] == "number":
        size = abs(tree[1])
        top, bottom = number(size.numerator), number(size.denominator)
        plain = top if size.denominator == 1 else divided(top, bottom)
        return plain if size == tree[1] else mul(MINUS_ONE, plain)
    kind, *parts = (unfolded(part) if isinstance(part, tuple) else part for part in tree)
    return add(*parts) if kind == "add" else mul(*parts) if kind == "mul" else (kind, *parts)


def same_text(answer: Answer, gold: Answer) -> bool:
    """Words without regard to case and spaces, "(B)" as "B"; a variable has its case."""
    words = [x.words if isinstance(x, Text) else x.symbol or "" for x in (answer, gold)]
    a, b = (_IN_BRACKETS.sub(r"\1", "".join(each.split())) for each in words)
    if isinstance(gold, Text) or len(b) > 2:
        a, b = a.casefold(), b.casefold()
    return a == b != ""

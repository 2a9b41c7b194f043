"""Reads an answer: from tokens to one of the kinds."""

import re
from collections.abc import Sequence
from fractions import Fraction

from unslothrl.rewards.maths import regions, units
from unslothrl.rewards.maths.kinds import (
    Answer,
    Based,
    Cases,
    Infinity,
    Literal,
    Matrix,
    Mixed,
    Nothing,
    Region,
    Relation,
    Row,
    Several,
    Text,
    Value,
)
from unslothrl.rewards.maths.latex import Letters, Token, Unreadable, cleaned, tokens
from unslothrl.rewards.maths.regions import Interval
from unslothrl.rewards.maths.tree import (
    GREEK_LETTERS,
    MATRICES,
    Tree,
    expressions,
    mul,
    negative,
    symbols,
)

Tokens = Sequence[Token]

_OPEN = {"(", "[", "{", "lset", "langle", "lfloor", "lceil"}
_CLOSE = {")", "]", "}", "rset", "rangle", "rfloor", "rceil"}
_RELATIONS = {"=", "<", ">", "le", "ge", "ne", "in", "notin", "approx", "equiv", "to", "sim",
              "subset", "subseteq", "implies", "parallel", "perp", "cong", "propto", ":", "|",
              "coloneqq", "ll", "gg", "mod"}  # fmt: skip
_ORDER = {"<", ">", "le", "ge"}
_NO_SOLUTION = re.compile(
    r"(there (is|are) )?no (solutions?|such \w+ exists?)( exists?)?|(the )?empty set|"
    r"no solutions? exists?"
)
_ALL_REALS = re.compile(r"(the )?(set of )?(all )?(the )?(real numbers|reals|real numbers x)")
_INTRODUCTION = re.compile(
    r"((so|thus|therefore|hence),? )?(the )?((final|correct) )?(answer|result|solution)s?"
    r"( is| are|:)?:?",
    re.IGNORECASE,
)
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7",
          "eight": "8", "nine": "9", "ten": "10", "eleven": "11", "twelve": "12",
          "sixteen": "16"}  # fmt: skip
MAX_PARTS = 60


def read(text: str, letters: Letters = Letters.UNIT) -> Answer:
    """Of an answer as it stands in a box. Never raises for text of any kind."""
    found: Tokens = ()
    try:
        found = tokens(cleaned(text), letters=letters)
        return read_tokens(found)
    except (Unreadable, RecursionError, ArithmeticError, ValueError, IndexError):
        return Literal(literal(found) if found else text)


def literal(found: Tokens) -> str:
    return " ".join(
        one.value.casefold().strip() if one.kind == "text" else one.value for one in found
    )


def read_tokens(found: Tokens) -> Answer:
    found = trimmed(found)
    if not found:
        raise Unreadable("empty")
    if all(one.kind == "text" or one.value in ",.;-()" for one in found) and any(
        one.kind == "text" for one in found
    ):
        return read_words(found)
    parts, connectives = separated(found)
    if len(parts) < 2:
        return read_one(found)
    answer = read_parts(parts, connectives)
    logical = any(one.kind == "command" and one.value in ("and", "or") for one in found)
    conditions = answer.parts if isinstance(answer, Several) else (answer,)
    if logical and not all(isinstance(one, Relation | Region) for one in conditions):
        raise Unreadable("a formula of logic")
    return answer


def trimmed(found: Tokens) -> Tokens:
    """Without separators at the ends, and without "the answer is" in front."""
    while found and found[-1].value in (",", ";", ".", "\\", "quad"):
        found = found[:-1]
    while found and found[0].value == "quad":
        found = found[1:]
    if found and found[0].kind == "text" and len(found) > 1:
        if _INTRODUCTION.fullmatch(found[0].value.strip()):
            rest = 2 if found[1].value == ":" else 1
            return trimmed(found[rest:])
        words = 0
        while words < len(found) and found[words].kind == "text" and words < 5:
            words += 1
        joined = " ".join(one.value for one in found[:words])
        if words > 1 and words < len(found) and _INTRODUCTION.fullmatch(joined):
            rest = words + (found[words].value == ":")
            return trimmed(found[rest:])
    return found


def depths(found: Tokens) -> list[int]:
    """At each token, how many brackets are open; a bracket itself counts as outside of it."""
    depth, result = 0, []
    for one in found:
        if one.kind != "text" and (one.value in _CLOSE or one.value.startswith("end ")):
            depth -= 1
        result.append(depth)
        if one.kind != "text" and (one.value in _OPEN or one.value.startswith("begin ")):
            depth += 1
    return result


def connective(one: Token) -> str:
    """ "and", "or" or "," where the token separates two parts, else ""."""
    if one.kind == "text":
        word = one.value.strip(" ,;").casefold()
        return word if word in ("and", "or") else "," if not word else ""
    if one.kind == "command":
        return {"and": "and", "or": "or", "\\": ",", "quad": ",", "&": "and"}.get(one.value, "")
    return "," if one.value in (",", ";") else ""


def separated(found: Tokens) -> tuple[list[Tokens], set[str]]:
    """The parts of a list, and what stands between them."""
    parts: list[Tokens] = []
    words: list[str] = []
    begun = 0
    for at, (one, depth) in enumerate(zip(found, depths(found), strict=True)):
        word = connective(one) if depth == 0 else ""
        if not word:
            continue
        if at > begun:
            parts.append(found[begun:at])
            words.append(word)
        elif words and word != ",":
            words[-1] = word  # ", and"
        begun = at + 1
    if begun < len(found):
        parts.append(found[begun:])
    if len(parts) > MAX_PARTS:
        raise Unreadable("too many parts")
    return parts, set(words[: len(parts) - 1])


def read_words(found: Tokens) -> Answer:
    """Words alone: one text, or a list of texts."""
    text = " ".join(one.value for one in found)
    words = " ".join(text.replace("( ", "(").replace(" )", ")").split()).strip(" .,;:!")
    folded = words.casefold()
    if _NO_SOLUTION.fullmatch(folded):
        return Nothing()
    if _ALL_REALS.fullmatch(folded):
        return Region(regions.EVERYTHING)
    if folded in ("dne", "does not exist", "doesn't exist", "do not exist"):
        return Text("DNE")
    if folded in ("infinity", "positive infinity"):
        return Infinity(1)
    if folded == "negative infinity":
        return Infinity(-1)
    parts = [one for one in re.split(r"\s*[,;]\s*(?:and |or )?|\s+(?:and|or)\s+", words) if one]
    if len(parts) > 1 and re.search(r"\bor\b", folded):  # says less than "and"
        return Row("or", tuple(Text(one) for one in sorted(parts, key=str.casefold)), "")
    if len(parts) > 1:
        return Several(tuple(Text(one) for one in parts))
    if not words:
        raise Unreadable("no words")
    return Text(words)


def read_parts(parts: Sequence[Tokens], connectives: set[str]) -> Answer:
    pairs = [(read_one(trimmed(part)), part) for part in parts if trimmed(part)]
    found = [one for one, _ in pairs]
    region = joined_regions(excluded(found), connectives)
    if region is not None:
        return region
    sets = [isinstance(one, Several) and closes(trimmed(part)) for one, part in pairs]
    if any(sets):  # sets in a list stay apart
        return Several(tuple(found))
    return joined(found)


def excluded(found: Sequence[Answer]) -> list[Answer]:
    """ "x != 1, 2" as "x != 1, x != 2"."""
    first = found[0]
    if not isinstance(first, Region) or not first.intervals:
        return list(found)
    outside = regions.complement(first.intervals)
    if len(outside) != 1 or outside[0].low is None or outside[0].low != outside[0].high:
        return list(found)
    rest = [
        Region(regions.complement((regions.point(one.tree),)), first.variable)
        if isinstance(one, Value) and not one.unit
        else one
        for one in found[1:]
    ]
    return [first, *rest]


def joined(found: Sequence[Answer]) -> Several:
    """Answers that stood apart as a list."""
    return Several(tuple(flattened(labelled(found))))


def labelled(found: Sequence[Answer]) -> list[Answer]:
    """ "x = 1, 2" as "x = 1, x = 2"."""
    first = found[0]
    if not (isinstance(first, Relation) and first.signs == ("=",)):
        return list(found)
    if not all(isinstance(one, Value) for one in (*first.sides, *found[1:])):
        return list(found)
    label = first.sides[0]
    return [first, *(Relation((label, one), ("=",)) for one in found[1:])]


def flattened(found: Sequence[Answer]) -> list[Answer]:
    return [part for one in found for part in (one.parts if isinstance(one, Several) else (one,))]


def joined_regions(found: Sequence[Answer], connectives: set[str]) -> Region | None:
    """Inequalities in one variable: "or" is a union; a comma or "and" is an intersection, unless
    that is empty."""
    if not all(isinstance(one, Region) for one in found):
        return None
    parts = [one for one in found if isinstance(one, Region)]
    names = {one.variable for one in parts} - {None}
    if len(names) > 1 or (not names and len(parts) > 1 and connectives == {","}):
        return None
    name = next(iter(names), None)
    every = [interval for one in parts for interval in one.intervals]
    if not names or connectives == {"or"}:
        return Region(regions.union(every), name)
    common = parts[0].intervals
    for one in parts[1:]:
        common = regions.intersection(common, one.intervals)
    return Region(common or regions.union(every), name)


def read_one(found: Tokens) -> Answer:
    """An answer without separators outside of brackets."""
    found = trimmed(found)
    if not found:
        raise Unreadable("empty")
    at = depths(found)
    relation = [
        i
        for i, one in enumerate(found)
        if at[i] == 0 and one.kind in ("sign", "command") and one.value in _RELATIONS - {"|"}
    ]
    if relation:
        return read_relation(found, relation)
    sets = [i for i, one in enumerate(found) if at[i] == 0 and is_set_sign(found, i)]
    if sets:
        return read_set_expression(found, sets)
    for reader in (read_brackets, read_matrix, read_named, read_based, read_value):
        answer = reader(found)
        if answer is not None:
            return answer
    return read_mixed(found)


def is_set_sign(found: Tokens, at: int) -> bool:
    """A sign between sets, a word for it, or the letter U between brackets."""
    one = found[at]
    if one.kind == "letter" and one.value == "U" and 0 < at < len(found) - 1:
        return found[at - 1].value in (")", "]") and found[at + 1].value in ("(", "[")
    if one.kind == "text":
        return one.value.strip().casefold() in ("except", "excluding")
    if one.value == "-" and 0 < at < len(found) - 1:  # R - {3}
        return found[at - 1].value in (")", "]", "}") and found[at + 1].value == "lset"
    return one.kind == "command" and one.value in ("cup", "cap", "setminus")


def read_set_expression(found: Tokens, signs: Sequence[int]) -> Answer:
    """Unions, intersections and differences from left to right."""
    ends = [*signs, len(found)]
    total = intervals_of(read_tokens(found[: ends[0]]))
    for sign, end in zip(signs, ends[1:], strict=True):
        name = found[sign].value.strip().casefold()
        other = intervals_of(read_tokens(found[sign + 1 : end]))
        if total is None or other is None:
            raise Unreadable("sets of something else")
        if name in ("cup", "u"):
            total = regions.union((*total, *other))
        elif name == "cap":
            total = regions.intersection(total, other)
        else:
            total = regions.intersection(total, regions.complement(regions.union(other)))
    assert total is not None
    return Region(total)


def intervals_of(answer: Answer) -> regions.Intervals | None:
    """A set of real numbers as intervals; None where it is none."""
    if isinstance(answer, Region):
        return answer.intervals
    if isinstance(answer, Nothing):
        return ()
    if isinstance(answer, Value):
        return None if answer.unit else (regions.point(answer.tree),)
    if isinstance(answer, Several):
        parts = [intervals_of(one) for one in answer.parts]
        if any(one is None for one in parts):
            return None
        return regions.union([one for part in parts for one in part or ()])
    if isinstance(answer, Row):
        return interval_of(answer)
    return None


def interval_of(row: Row) -> regions.Intervals | None:
    """ "(1, 2]" as an interval; None where its ends are no numbers in order."""
    if len(row.parts) != 2 or row.opening not in "([" or row.closing not in ")]":
        return None
    ends: list[Tree | None] = []
    for one, sign in zip(row.parts, (-1, 1), strict=True):
        if isinstance(one, Infinity) and one.sign == sign:
            ends.append(None)
        elif isinstance(one, Value) and not one.unit:
            ends.append(one.tree)
        else:
            return None
    found = Interval(
        ends[0],
        row.opening == "[" and ends[0] is not None,
        ends[1],
        row.closing == "]" and ends[1] is not None,
    )
    try:
        return None if found.is_empty else (found,)
    except Unreadable:
        return (found,)


def read_relation(found: Tokens, places: Sequence[int]) -> Answer:
    pieces: list[Tokens] = []
    signs: list[str] = []
    begun = 0
    for at in places:
        pieces.append(found[begun:at])
        signs.append(found[at].value)
        begun = at + 1
    pieces.append(found[begun:])
    ends = (0, len(pieces) - 1) if set(signs) <= {"=", "approx"} else ()
    sides = [
        (read_application(piece) if i in ends else None) or read_tokens(piece)
        for i, piece in enumerate(pieces)
    ]
    if signs == ["in"]:
        return membership(sides[0], sides[1])
    if all(sign in _ORDER or sign == "ne" for sign in signs):
        region = inequality(sides, signs)
        if region is not None:
            return region
    many = [side for side in sides if isinstance(side, Several)]
    if len(many) == 1 and many[0] is sides[-1] and len(sides) == 2:  # x = \pm 2
        return Several(tuple(Relation((sides[0], one), (signs[0],)) for one in many[0].parts))
    return Relation(tuple(sides), tuple(signs))


def read_application(found: Tokens) -> Answer | None:
    """ "T(n)", "p(x)", "P(X = 2)" and "E[X]" as names of what they are equal to; "x(x + 1)" and
    "x(2)" are products."""
    if len(found) < 4 or not is_function_name(found[0]):
        return None
    start = next((i for i, one in enumerate(found) if one.value in ("(", "[")), 0)
    before = [one.value for one in found[:start]]
    if not start or not closes(found[start:]) or set(before) & set("^+-*/"):
        return None
    if len([one for one in found[:start] if one.kind == "letter"]) > 1 and "_" not in before:
        return None
    inside = found[start + 1 : -1]
    simple = len(inside) == 1 or any(
        one.value in _RELATIONS | {"cap", "cup", ","} for one in inside
    )
    if found[0].value.islower() and found[0].kind == "letter":
        arguments = [one for one in inside if one.value not in ",{}"]
        simple = simple and not any(one.value in _RELATIONS for one in inside)
        simple = simple and all(
            (one.kind == "letter" and one.value != found[0].value)
            or (one.kind == "number" and found[0].value not in "xyz")
            for one in arguments
        )
    return Value(("call", "of " + literal(found))) if simple else None


def is_function_name(token: Token) -> bool:
    if token.kind == "letter":
        return token.value not in "eifgh"  # the parser reads f, g and h
    return token.value in GREEK_LETTERS - {"pi"} or token.value == "mathbb"


def membership(left: Answer, right: Answer) -> Answer:
    """ "x in (1, 2)" is the interval, with its variable."""
    name = variable_of(left)
    if name is not None and isinstance(right, Region):
        return Region(right.intervals, name)
    if name is not None and isinstance(right, Row):
        intervals = interval_of(right)
        if intervals is not None:
            return Region(intervals, name)
    if name is not None and isinstance(right, Several):
        return Several(tuple(Relation((left, one), ("=",)) for one in right.parts))
    return Relation((left, right), ("in",))


def variable_of(answer: Answer) -> str | None:
    if isinstance(answer, Value) and answer.tree[0] == "symbol" and not answer.unit:
        return answer.tree[1]
    return None


def inequality(sides: Sequence[Answer], signs: Sequence[str]) -> Region | None:
    """The solutions of inequalities in one variable; None where they are not found."""
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
    if isinstance(left, Infinity) or isinstance(right, Infinity):
        low = isinstance(left, Infinity) and left.sign < 0 and sign in ("<", "le")
        high = isinstance(right, Infinity) and right.sign > 0 and sign in ("<", "le")
        return regions.EVERYTHING if low or high else None
    if not (isinstance(left, Value) and isinstance(right, Value)) or left.unit or right.unit:
        return None
    return regions.where(left.tree, sign, right.tree, name)


def closes(found: Tokens) -> bool:
    """Whether the first token is a bracket that the last one closes."""
    if len(found) < 2 or found[0].kind == "text" or found[-1].kind == "text":
        return False
    if found[0].value not in _OPEN or found[-1].value not in _CLOSE:
        return False
    return all(depth > 0 for depth in depths(found)[1:-1])


def read_brackets(found: Tokens) -> Answer | None:
    """A set, tuple, interval or a list in parentheses."""
    if not closes(found):
        return None
    opening, closing, inside = found[0].value, found[-1].value, found[1:-1]
    if opening == "lset" and closing == "rset":
        return read_set(inside)
    if opening not in ("(", "[", "langle", "{"):
        return None
    if opening == "[" and closing == "]" and [one.value for one in inside[:1]] == ["begin array"]:
        return read_matrix(inside)
    if opening == "(" and closing == ")" and inside and inside[0].value == "begin array":
        return read_matrix(inside)
    parts, between = separated(inside)
    if len(parts) < 2:
        single = opening == "{" or (opening, closing) in (("(", ")"), ("[", "]"))
        return read_tokens(inside) if single and inside else None
    if opening == "{":
        return read_tokens(inside)
    if between != {","}:
        return None
    brackets = ("(", ")") if opening == "langle" else (opening, closing)
    return Row(brackets[0], tuple(read_tokens(part) for part in parts), brackets[1])


def read_set(inside: Tokens) -> Answer:
    if not inside:
        return Nothing()
    at = depths(inside)
    bars = [i for i, one in enumerate(inside) if at[i] == 0 and one.value in ("|", ":")]
    if len(bars) == 1:
        return read_builder(inside[: bars[0]], inside[bars[0] + 1 :])
    parts, _ = separated(inside)
    found = [
        answer.parts if isinstance(answer, Several) and not closes(part) else (answer,)
        for part in parts
        for answer in (read_one(part),)
    ]
    return Several(tuple(one for each in found for one in each))


def read_builder(left: Tokens, right: Tokens) -> Answer:
    """ "{x | x > 3}", "{x in R : x != 2}"."""
    head, body = read_tokens(left), read_tokens(right)
    domain: regions.Intervals = regions.EVERYTHING
    name = variable_of(head)
    if isinstance(head, Region):
        domain, name = head.intervals, head.variable
    if name is None or not isinstance(body, Region) or body.variable not in (name, None):
        raise Unreadable("set of something else")
    return Region(regions.intersection(domain, body.intervals))


def read_matrix(found: Tokens) -> Answer | None:
    """A matrix, with a factor before it or not; a definition by cases."""
    places = [i for i, one in enumerate(found) if one.value.startswith("begin ")]
    if len(places) != 1 or not found[-1].value.startswith("end "):
        return None
    name = found[places[0]].value[6:]
    if found[-1].value != f"end {name}" or name not in MATRICES | {"cases", "aligned"}:
        return None
    rows = [
        tuple(cell(one) for one in cells(row)) for row in split(found[places[0] + 1 : -1], "\\")
    ]
    rows = [row for row in rows if row]
    factor = found[: places[0]]
    if name in ("cases", "aligned"):
        if factor or any(len(row) > 2 for row in rows):
            return None
        if all(len(row) == 1 for row in rows):
            return Several(tuple(row[0] for row in rows))
        return Cases(tuple(rows))
    if not factor:
        return Matrix(tuple(rows))
    if factor[-1].value in ("cdot", "times", "*"):
        factor = factor[:-1]
    minus = [one.value for one in factor] == ["-"]
    (by,) = [negative(("number", Fraction(1)))] if minus else expressions(factor)
    return Matrix(tuple(tuple(scaled(by, one) for one in row) for row in rows))


def split(found: Tokens, command: str) -> list[Tokens]:
    parts: list[list[Token]] = [[]]
    for one in found:
        if one.kind in ("command", "sign") and one.value == command:
            parts.append([])
        elif one.value != "hline":
            parts[-1].append(one)
    return [part for part in parts if part]


def cells(row: Tokens) -> list[Tokens]:
    return split(row, "&")


def cell(found: Tokens) -> Answer:
    return read_tokens(found)


def scaled(by: Tree, answer: Answer) -> Answer:
    if not isinstance(answer, Value) or answer.unit:
        raise Unreadable("a factor of what is no number")
    return Value(mul(by, answer.tree))


def read_named(found: Tokens) -> Answer | None:
    """Infinity, the empty set, the real numbers."""
    values = [one.value for one in found if one.value not in "{}()" or one.kind != "sign"]
    if values and values[-1] == "infty" and values[:-1] in ([], ["+"], ["-"]):
        return Infinity(-1 if values[0] == "-" else 1)
    if values == ["emptyset"]:
        return Nothing()
    if values == ["mathbb", "R"]:
        return Region(regions.EVERYTHING)
    if values and values[0] in ("ldots",) and len(values) == 1:
        return Literal("...")
    return None


def read_based(found: Tokens) -> Answer | None:
    """ "52_8", "1A_{16}", "52_{\\text{eight}}"."""
    values = [one.value for one in found]
    if "_" not in values:
        return None
    at = values.index("_")
    digits = [one for one in found[:at] if one.value not in "(){}"]
    name = "".join(values[at + 1 :]).strip("{}() ").removeprefix("base").strip()
    name = _BASES.get(name, name)
    if not digits or not all(one.kind in ("number", "letter", "text") for one in digits):
        return None
    text = "".join(one.value for one in digits)
    if not name.isdecimal() or not re.fullmatch(r"\d[\dA-Z.]*|[A-F][\dA-F]*\d[\dA-F]*", text):
        return None
    return Based(text, str(int(name)))


def read_value(found: Tokens) -> Answer | None:
    """A number or expression, with a unit or without."""
    found, money = without_currency(found)
    start = next((i for i, one in enumerate(found) if one.kind == "text"), len(found))
    if 1 < start < len(found) and found[start - 1].value == "mu":
        start -= 1  # micro
    if start == 0:
        return None
    unit, wrap = money, ""
    tail = found[start:]
    if (
        not tail
        and (
            found[-1].value in ("pounds", "euro", "AA", "$")
            or (found[-1].value == "Omega" and all(one.kind != "letter" for one in found[:-1]))
        )
        and len(found) > 1
    ):
        found, tail = found[:-1], found[-1:]
        start = len(found)
    if tail:
        words = literal(tail).strip(" .")
        celsius = degrees_of(found[:start], words)
        if words in ("percent", "per cent", "percents"):
            wrap = "percent"
        elif words in ("degrees", "degree", "deg"):
            wrap = "degree"
        elif celsius is not None:
            found, unit, start = celsius
        else:
            try:
                unit = units.product((*money, *units.read(tail)))
            except Unreadable:
                return None
            if money and unit == units.product((*money, *money)):
                unit = money  # $5 dollars
    else:
        celsius = degrees_of(found[:-1], found[-1].value)
        if celsius is not None:
            found, unit, start = celsius
    body = found[:start]
    while body and body[-1].value in ("-", "{", "cdot", "times", "*") and tail:
        body = body[:-1]  # "6-inch"
    if not body:
        return None
    try:
        trees = expressions(body)
    except Unreadable:
        return None
    if wrap:
        trees = [("call", wrap, tree) for tree in trees]
    values = tuple(Value(tree, unit, is_rounded(body)) for tree in trees)
    return values[0] if len(values) == 1 else Several(values)


def without_currency(found: Tokens) -> tuple[Tokens, units.Unit]:
    """ "\\$5" and "-\\$5" without the sign, and the unit that it is."""
    for at in (0, 1):
        if len(found) > at + 1 and found[at].kind == "command":
            name = found[at].value
            if name in ("$", "pounds", "euro") and (at == 0 or found[0].value in "+-"):
                unit = units.name_of(name if name == "$" else "\\" + name)
                return [*found[:at], *found[at + 1 :]], ((unit, Fraction(1)),)
    return found, ()


def degrees_of(body: Tokens, scale: str) -> tuple[Tokens, units.Unit, int] | None:
    """ "37^\\circ\\text{C}": the number, the scale and its length."""
    name = {"c": "degC", "f": "degF", "celsius": "degC", "fahrenheit": "degF"}.get(scale.lower())
    values = [one.value for one in body]
    length = 2 if values[-2:] == ["^", "circ"] else 4 if values[-3:-1] == ["{", "circ"] else 0
    if name is None or not length or len(body) <= length:
        return None
    return body[:-length], ((name, Fraction(1)),), len(body) - length


def is_rounded(found: Tokens) -> bool:
    """Whether it is one decimal with a point, or one times a power of ten."""
    numbers = [one.value for one in found if one.kind == "number"]
    others = [one.value for one in found if one.kind != "number"]
    if not numbers or "." not in numbers[0]:
        return False
    return (len(numbers) == 1 and set(others) <= {"-", "+"}) or (
        numbers[1:2] == ["10"] and len(numbers) == 3 and set(others) <= set("-+{}^*") | _TIMES
    )


_TIMES = {"times", "cdot"}


def read_mixed(found: Tokens) -> Answer:
    """Words and mathematics in turns."""
    parts: list[Answer] = []
    run: list[Token] = []
    if not any(one.kind == "text" for one in found) or len(found) < 2:
        raise Unreadable("no kind of answer")
    for one, depth in zip(found, depths(found), strict=True):
        if one.kind == "text" and depth == 0:
            if run:
                parts.append(read_tokens(run))
                run = []
            parts.append(Text(one.value.strip(" ,;:.")))
        else:
            run.append(one)
    if len(run) == len(found):
        raise Unreadable("no kind of answer")
    if run:
        parts.append(read_tokens(run))
    return Mixed(tuple(parts))

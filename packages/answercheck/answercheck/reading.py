"""Reads an answer: from text to one of the kinds, by recursive descent."""

import functools
import itertools
import re
from collections.abc import Sequence

from answercheck import regions
from answercheck.cleaning import cleaned
from answercheck.kinds import Answer, Collection, Literal, Region, Relation, Row, Text, Value
from answercheck.parser import expressions
from answercheck.quantities import read_named, read_value, read_words
from answercheck.tokens import INTRODUCTION, Letters, Token, Tokens, Unreadable, literal, tokenise
from answercheck.trees import MINUS_ONE, Tree, mul
from answercheck.vocabulary import GREEK_LETTERS, word_set

MAX_PARTS = 60
_OPEN = {"(", "[", "{", "lset", "langle", "lfloor", "lceil"}
_CLOSE = {")", "]", "}", "rset", "rangle", "rfloor", "rceil"}
_CONNECTIVES = {"and": "and", "or": "or", "\\": ",", "quad": ",", "&": "and"}  # of commands
_CASES = {"cases", "aligned"}
_MATRICES = {"pmatrix", "bmatrix", "matrix", "array", "smallmatrix", "Bmatrix"}
RELATIONS = word_set("= < > : le ge ne in notin approx equiv to sim subset subseteq implies")
RELATIONS |= word_set("parallel perp cong propto coloneqq ll gg mod")
_CALLED = GREEK_LETTERS - {"pi"} | {"mathbb"}


def read(text: str, letters: Letters = Letters.UNIT) -> Answer:
    """The answer that stands in a box. Never raises, whatever the text."""
    tokens: Tokens = ()
    try:
        tokens = tokenise(cleaned(text), letters=letters)
        return read_tokens(tokens)
    except (RecursionError, ArithmeticError, ValueError, IndexError):  # Unreadable is a ValueError
        return Literal(literal(tokens) if tokens else text)


def read_tokens(tokens: Tokens) -> Answer:
    """A whole answer, or one inside of brackets. Unreadable."""
    tokens = trimmed(tokens)
    has_words = any(token.kind == "text" for token in tokens)
    if has_words and all(token.kind == "text" or token.value in ",.;-()" for token in tokens):
        return read_words(" ".join(token.value for token in tokens))
    parts, connectives = separated(tokens)
    if len(parts) < 2:
        return read_undivided(tokens)
    pieces = [piece for part in parts if (piece := trimmed(part))]
    answers = [read_undivided(piece) for piece in pieces]
    region = as_region(answers, connectives)
    if region is not None:
        return region
    answer = as_list(answers)
    pairs = zip(answers, pieces, strict=True)
    if any(isinstance(each, Collection) and closes(piece) for each, piece in pairs):
        answer = Collection(tuple(answers))  # sets in a list stay apart
    is_logic = any(token.kind == "command" and token.value in ("and", "or") for token in tokens)
    if is_logic and not all(isinstance(part, Relation | Region) for part in answer.parts):
        raise Unreadable("a formula of logic")
    return answer


def read_undivided(tokens: Tokens) -> Answer:
    tokens = trimmed(tokens)
    if not tokens:
        raise Unreadable("empty")
    places = outside(tokens)
    relations = [i for i in places if tokens[i].kind != "text" and tokens[i].value in RELATIONS]
    signs = [i for i in relations if tokens[i].value != ":"] or relations  # which binds closest
    if signs:
        return read_relation(tokens, signs)
    operations = [i for i in places if is_set_operation(tokens, i)]
    if operations:
        return read_set_expression(tokens, operations)
    for reader in (read_brackets, read_matrix, read_named, read_value):
        answer = reader(tokens)
        if answer is not None:
            return answer
    return read_mixed(tokens)


def is_set_operation(tokens: Tokens, at: int) -> bool:
    """A sign between sets, a word for it, or the letter U between brackets."""
    token = tokens[at]
    if token.kind == "text":
        return token.value.strip().casefold() in ("except", "excluding")
    before, after = (tokens[i].value if 0 <= i < len(tokens) else "" for i in (at - 1, at + 1))
    if token.kind == "letter":
        return token.value == "U" and before in (")", "]") and after in ("(", "[")
    if token.value == "-":  # R - {3}
        return before in (")", "]", "}") and after == "lset"
    return token.kind == "command" and token.value in ("cup", "cap", "setminus")


def read_set_expression(tokens: Tokens, operations: Sequence[int]) -> Answer:
    """Unions, intersections and differences from left to right."""
    sets = [regions.intervals_of(read_tokens(piece)) for piece in cut_at(tokens, operations)]
    known = [each for each in sets if each is not None]
    if len(known) < len(sets):
        raise Unreadable("sets of something else")
    total, *others = known
    for at, other in zip(operations, others, strict=True):
        name = tokens[at].value
        if name in ("cup", "U"):
            total = regions.union((*total, *other))
        else:
            other = other if name == "cap" else regions.complement(regions.union(other))
            total = regions.intersection(total, other)
    return Region(total)


def read_relation(tokens: Tokens, places: Sequence[int]) -> Answer:
    signs = [tokens[at].value for at in places]
    if ":" in signs and any(re.fullmatch(r"0\d+", token.value) for token in tokens):
        raise Unreadable("a time")  # "2:05" is no ratio
    pieces = cut_at(tokens, places)
    ends = (0, len(places)) if set(signs) <= {"=", "approx"} else ()
    sides = [
        (read_application(piece) if i in ends else None) or read_tokens(piece)
        for i, piece in enumerate(pieces)
    ]
    return relation(sides, signs)


def read_brackets(tokens: Tokens) -> Answer | None:
    if not closes(tokens):
        return None
    opening, closing, inside = tokens[0].value, tokens[-1].value, tokens[1:-1]
    if opening == "lset" and closing == "rset":
        return read_set(inside)
    if opening not in ("(", "[", "langle", "{"):
        return None
    is_pair = opening + closing in ("()", "[]")
    parts, between = separated(inside)
    if len(parts) < 2 or opening == "{":
        return read_tokens(inside) if (is_pair or opening == "{") and inside else None
    if between != {","}:
        return None
    kind = "()" if opening == "langle" else opening + closing
    return Row(kind, tuple(map(read_tokens, parts)))


def read_set(inside: Tokens) -> Answer:
    if not inside:
        return Region(())
    bars = [i for i in outside(inside) if inside[i].value in ("|", ":")]
    if len(bars) == 1:  # "{x | x > 3}", "{x in R : x != 2}"
        head, body = (read_tokens(piece) for piece in cut_at(inside, bars))
        domain, name = regions.EVERYTHING, head.symbol
        if isinstance(head, Region):
            domain, name = head.intervals, head.variable
        if name is None or not isinstance(body, Region) or body.variable not in (name, None):
            raise Unreadable("set of something else")
        return Region(regions.intersection(domain, body.intervals))
    elements: list[Answer] = []
    for part in separated(inside)[0]:
        answer = read_undivided(part)
        elements += [answer] if closes(part) else as_list([answer]).parts
    return Collection(tuple(elements), is_set=True)


def read_matrix(tokens: Tokens) -> Answer | None:
    """A matrix, with a factor before it or not; a definition by cases."""
    begins = [i for i, token in enumerate(tokens) if token.value.startswith("begin ")]
    if len(begins) != 1:
        return None
    factor, begin, inside = tokens[: begins[0]], tokens[begins[0]], tokens[begins[0] + 1 : -1]
    environment = begin.value.removeprefix("begin ")
    if environment not in _CASES | _MATRICES or tokens[-1].value != "end " + environment:
        return None
    inside = [token for token in inside if token.value != "hline"]
    cells = [split(row, "&") for row in split(inside, "\\")]
    rows = [Row("row", tuple(map(read_tokens, row))) for row in cells if row]
    if environment in _MATRICES:
        if factor:
            is_minus = [token.value for token in factor] == ["-"]
            has_sign = factor[-1].value in ("cdot", "times", "*")
            (by,) = [MINUS_ONE] if is_minus else expressions(factor[:-1] if has_sign else factor)
            rows = [Row("row", tuple(times(by, cell) for cell in row.parts)) for row in rows]
        return Row("matrix", tuple(rows))
    if factor or any(len(row.parts) > 2 for row in rows):
        return None
    if all(len(row.parts) == 1 for row in rows):
        return Collection(tuple(row.parts[0] for row in rows))
    return Row("cases", tuple(rows))


def times(by: Tree, cell: Answer) -> Value:
    tree = cell.plain
    if tree is None:
        raise Unreadable("a factor of what is no number")
    return Value(mul(by, tree))


def read_mixed(tokens: Tokens) -> Answer:
    places = [i for i in outside(tokens) if tokens[i].kind == "text"]
    if not places or len(tokens) < 2:
        raise Unreadable("no kind of answer")
    parts: list[Answer] = []
    for piece, at in zip(cut_at(tokens, places), [*places, None], strict=True):
        if piece:
            parts.append(read_tokens(piece))
        if at is not None:
            parts.append(Text(tokens[at].value.strip(" ,;:.")))
    return Row("mixed", tuple(parts))


def read_application(tokens: Tokens) -> Answer | None:
    """ "T(n)", "p(x)", "P(X = 2)" and "E[X]" as names of what they are equal to; "x(x + 1)" and
    "x(2)" are products, f(x) and the like are read by the parser."""
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
    values, separators = [token.value for token in inside], RELATIONS | {"|", "cap", "cup", ","}
    is_number = len(values) == 1 or values[:-1] == ["-"]  # or a letter
    is_simple = is_number or not separators.isdisjoint(values)
    if name.value.islower() and name.kind == "letter":
        is_simple = is_simple and all(
            (token.kind == "letter" and token.value != name.value)
            or (token.kind == "number" and name.value not in "xyz")
            for token in inside
            if token.value not in ",{}"
        )
    return Value(("call", "of " + literal(tokens))) if is_simple else None


def relation(sides: Sequence[Answer], signs: Sequence[str]) -> Answer:
    """A region of inequalities that can be solved, a list where the last side is one."""
    first, last = sides[0], sides[-1]
    if len(sides) == 2 and isinstance(last, Collection) and not isinstance(first, Collection):
        sign = "=" if signs[0] == "in" else signs[0]
        return Collection(tuple(Relation((first, part), (sign,)) for part in last.parts))
    if [*signs] == ["in"] and first.symbol and isinstance(last, Region | Row):
        intervals = regions.intervals_of(last)
        if intervals is not None:
            return Region(intervals, first.symbol)
    if set(signs) == {":"}:
        return Row("ratio", tuple(sides))
    if set(signs) <= {">", "ge"}:
        sides, signs = sides[::-1], [regions.TURNED[sign] for sign in reversed(signs)]
    if set(signs) <= regions.TURNED.keys() and (region := regions.inequality(sides, signs)):
        return region
    return Relation(tuple(sides), tuple(signs))


def as_region(answers: Sequence[Answer], connectives: set[str]) -> Region | None:
    """Inequalities in one variable: "or" is a union, "and" an intersection, a comma the
    latter where there is one."""
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
    return Region(common if common or "and" in connectives else together, name)


def as_list(answers: Sequence[Answer]) -> Collection:
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


def trimmed(tokens: Tokens) -> Tokens:
    """Without separators at the ends, and without "the answer is" in front; "minus 7" as "-7"."""
    while tokens and tokens[-1].value in (",", ";", ".", "\\", "quad"):
        tokens = tokens[:-1]
    while tokens and tokens[0].value == "quad":
        tokens = tokens[1:]
    if len(tokens) < 2 or tokens[0].kind != "text":
        return tokens
    sign = tokens[0].value.strip().casefold()
    if sign in ("minus", "negative") and tokens[1].kind in ("number", "command"):
        return [tokens[0]._replace(kind="sign", value="-"), *tokens[1:]]
    words = next((i for i, token in enumerate(tokens) if token.kind != "text" or i == 5), None)
    for end in (1, words or 1):
        if INTRODUCTION.fullmatch(" ".join(token.value for token in tokens[:end]).strip()):
            return trimmed(tokens[end + (tokens[end].value in (":", "=")) :])
    return tokens


def outside(tokens: Tokens) -> list[int]:
    """Where the tokens are that stand in no brackets; brackets themselves are outside of them."""
    depth, places = 0, []
    for at, (kind, value) in enumerate(tokens):
        depth -= kind != "text" and (value in _CLOSE or value.startswith("end "))
        if depth == 0:
            places.append(at)
        depth += kind != "text" and (value in _OPEN or value.startswith("begin "))
    return places


def closes(tokens: Tokens) -> bool:
    are_brackets = len(tokens) > 1 and tokens[0].value in _OPEN and tokens[-1].value in _CLOSE
    return are_brackets and outside(tokens) == [0, len(tokens) - 1]


def connective(token: Token) -> str:
    """ "and", "or" or "," where the token separates two parts, else ""."""
    if token.kind == "text":
        word = token.value.strip(" ,;").casefold()
        return word if word in ("and", "or") else "," if not word else ""
    if token.kind == "command":
        return _CONNECTIVES.get(token.value, "")
    return "," if token.value in (",", ";") else ""


def cut_at(tokens: Tokens, places: Sequence[int]) -> list[Tokens]:
    ends = zip([-1, *places], [*places, len(tokens)], strict=True)
    return [tokens[start + 1 : end] for start, end in ends]


def separated(tokens: Tokens) -> tuple[list[Tokens], set[str]]:
    places = [i for i in outside(tokens) if connective(tokens[i])]
    parts: list[Tokens] = []
    words: list[str] = []
    for part, at in zip(cut_at(tokens, places), [*places, None], strict=True):
        word = "," if at is None else connective(tokens[at])
        if part:
            parts.append(part)
            words.append(word)
        elif words and word != ",":
            words[-1] = word  # ", and"
    if len(parts) > MAX_PARTS:
        raise Unreadable("too many parts")
    return parts, set(words[:-1])


def split(tokens: Tokens, command: str) -> list[Tokens]:
    places = [i for i, token in enumerate(tokens) if token.value == command]
    return [part for part in cut_at(tokens, places) if part]

"""Reads an answer: from text to one of the kinds, by recursive descent."""

import re
from collections.abc import Sequence

from answercheck import regions
from answercheck.cleaning import cleaned
from answercheck.kinds import (
    Answer,
    Collection,
    Literal,
    Region,
    Relation,
    Row,
    Text,
    Value,
    variable_of,
)
from answercheck.parser import expressions
from answercheck.quantities import read_named, read_value
from answercheck.relations import RELATIONS, as_list, as_region, read_application, relation
from answercheck.tokens import (
    Letters,
    Tokens,
    Unreadable,
    closes,
    cut_at,
    literal,
    outside,
    separated,
    split,
    tokenise,
    trimmed,
)
from answercheck.trees import MINUS_ONE, mul
from answercheck.words import read_words

_CASES = {"cases", "aligned"}
_MATRICES = {"pmatrix", "bmatrix", "matrix", "array", "smallmatrix", "Bmatrix"}


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
    """An answer without separators outside of brackets."""
    tokens = trimmed(tokens)
    if not tokens:
        raise Unreadable("empty")
    places = outside(tokens)
    signs = [i for i in places if tokens[i].kind != "text" and tokens[i].value in RELATIONS]
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
    """Sides with the relations at these places between them."""
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
    """A set, tuple, interval or a list in parentheses."""
    if not closes(tokens):
        return None
    opening, closing, inside = tokens[0].value, tokens[-1].value, tokens[1:-1]
    if opening == "lset" and closing == "rset":
        return read_set(inside)
    if opening not in ("(", "[", "langle", "{"):
        return None
    is_pair = opening + closing in ("()", "[]")
    if is_pair and inside and inside[0].value == "begin array":
        return read_matrix(inside)
    parts, between = separated(inside)
    if len(parts) < 2 or opening == "{":
        return read_tokens(inside) if (is_pair or opening == "{") and inside else None
    if between != {","}:
        return None
    kind = "()" if opening == "langle" else opening + closing
    return Row(kind, tuple(map(read_tokens, parts)))


def read_set(inside: Tokens) -> Answer:
    """What stands in the braces of a set."""
    if not inside:
        return Region(())
    bars = [i for i in outside(inside) if inside[i].value in ("|", ":")]
    if len(bars) == 1:  # "{x | x > 3}", "{x in R : x != 2}"
        head, body = (read_tokens(piece) for piece in cut_at(inside, bars))
        domain, name = regions.EVERYTHING, variable_of(head)
        if isinstance(head, Region):
            domain, name = head.intervals, head.variable
        if name is None or not isinstance(body, Region) or body.variable not in (name, None):
            raise Unreadable("set of something else")
        return Region(regions.intersection(domain, body.intervals))
    elements: list[Answer] = []
    for part in separated(inside)[0]:
        answer = read_undivided(part)
        is_list = isinstance(answer, Collection) and not closes(part)
        elements += answer.parts if is_list else (answer,)
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
        return Row("matrix", tuple(scaled(rows, factor) if factor else rows))
    if factor or any(len(row.parts) > 2 for row in rows):
        return None
    if all(len(row.parts) == 1 for row in rows):
        return Collection(tuple(row.parts[0] for row in rows))
    return Row("cases", tuple(rows))


def scaled(rows: Sequence[Row], factor: Tokens) -> list[Row]:
    """The rows times what stands before a matrix."""
    if factor[-1].value in ("cdot", "times", "*"):
        factor = factor[:-1]
    is_minus = [token.value for token in factor] == ["-"]
    (by,) = [MINUS_ONE] if is_minus else expressions(factor)
    if any(not isinstance(cell, Value) or cell.unit for row in rows for cell in row.parts):
        raise Unreadable("a factor of what is no number")
    return [Row("row", tuple(Value(mul(by, cell.tree)) for cell in row.parts)) for row in rows]


def read_mixed(tokens: Tokens) -> Answer:
    """Words and mathematics in turns."""
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

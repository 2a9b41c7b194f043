"""Reads an answer: from text to one of the kinds, by recursive descent."""

import re
from collections.abc import Sequence

from unslothrl.rewards.maths import regions
from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.intervals import intervals_of
from unslothrl.rewards.maths.kinds import (
    Answer,
    Collection,
    EmptySet,
    Literal,
    Mixed,
    Region,
    Relation,
    Row,
    Text,
    variable_of,
)
from unslothrl.rewards.maths.notation.brackets import (
    closes,
    depths,
    literal,
    separated,
    trimmed,
)
from unslothrl.rewards.maths.notation.cleaning import cleaned
from unslothrl.rewards.maths.notation.tokens import Letters, Token, Tokens, tokenise
from unslothrl.rewards.maths.reading import matrices
from unslothrl.rewards.maths.reading.lists import as_list, as_region, with_exclusions
from unslothrl.rewards.maths.reading.quantities import read_based, read_named, read_value
from unslothrl.rewards.maths.reading.relations import RELATIONS, read_application, relation
from unslothrl.rewards.maths.reading.words import read_words


def read(text: str, letters: Letters = Letters.UNIT) -> Answer:
    """The answer that stands in a box. Never raises, whatever the text."""
    tokens: Tokens = ()
    try:
        tokens = tokenise(cleaned(text), letters=letters)
        return read_tokens(tokens)
    except (Unreadable, RecursionError, ArithmeticError, ValueError, IndexError):
        return Literal(literal(tokens) if tokens else text)


def read_tokens(tokens: Tokens) -> Answer:
    """A whole answer, or one inside of brackets. Unreadable."""
    tokens = trimmed(tokens)
    if not tokens:
        raise Unreadable("empty")
    if all(token.kind == "text" or token.value in ",.;-()" for token in tokens) and any(
        token.kind == "text" for token in tokens
    ):
        return read_words(tokens)
    parts, connectives = separated(tokens)
    if len(parts) < 2:
        return read_undivided(tokens)
    answer = read_parts(parts, connectives)
    logical = any(token.kind == "command" and token.value in ("and", "or") for token in tokens)
    conditions = answer.parts if isinstance(answer, Collection) else (answer,)
    if logical and not all(isinstance(part, Relation | Region) for part in conditions):
        raise Unreadable("a formula of logic")
    return answer


def read_parts(parts: Sequence[Tokens], connectives: set[str]) -> Answer:
    pieces = [piece for part in parts if (piece := trimmed(part))]
    answers = [read_undivided(piece) for piece in pieces]
    region = as_region(with_exclusions(answers), connectives)
    if region is not None:
        return region
    if any(
        isinstance(answer, Collection) and closes(piece)
        for answer, piece in zip(answers, pieces, strict=True)
    ):  # sets in a list stay apart
        return Collection(tuple(answers))
    return as_list(answers)


def read_undivided(tokens: Tokens) -> Answer:
    """An answer without separators outside of brackets."""
    tokens = trimmed(tokens)
    if not tokens:
        raise Unreadable("empty")
    at = depths(tokens)
    places = [
        i
        for i, token in enumerate(tokens)
        if at[i] == 0 and token.kind in ("sign", "command") and token.value in RELATIONS - {"|"}
    ]
    if places:
        return read_relation(tokens, places)
    sets = [i for i, token in enumerate(tokens) if at[i] == 0 and is_set_sign(tokens, i)]
    if sets:
        return read_set_expression(tokens, sets)
    for reader in (read_brackets, read_matrix, read_named, read_based, read_value):
        answer = reader(tokens)
        if answer is not None:
            return answer
    return read_mixed(tokens)


def is_set_sign(tokens: Tokens, at: int) -> bool:
    """A sign between sets, a word for it, or the letter U between brackets."""
    token = tokens[at]
    if token.kind == "letter" and token.value == "U" and 0 < at < len(tokens) - 1:
        return tokens[at - 1].value in (")", "]") and tokens[at + 1].value in ("(", "[")
    if token.kind == "text":
        return token.value.strip().casefold() in ("except", "excluding")
    if token.value == "-" and 0 < at < len(tokens) - 1:  # R - {3}
        return tokens[at - 1].value in (")", "]", "}") and tokens[at + 1].value == "lset"
    return token.kind == "command" and token.value in ("cup", "cap", "setminus")


def read_set_expression(tokens: Tokens, signs: Sequence[int]) -> Answer:
    """Unions, intersections and differences from left to right."""
    ends = [*signs, len(tokens)]
    total = intervals_of(read_tokens(tokens[: ends[0]]))
    for sign, end in zip(signs, ends[1:], strict=True):
        name = tokens[sign].value.strip().casefold()
        other = intervals_of(read_tokens(tokens[sign + 1 : end]))
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


def read_relation(tokens: Tokens, places: Sequence[int]) -> Answer:
    """Sides with the relations at these places between them."""
    pieces: list[Tokens] = []
    signs: list[str] = []
    begun = 0
    for at in places:
        pieces.append(tokens[begun:at])
        signs.append(tokens[at].value)
        begun = at + 1
    pieces.append(tokens[begun:])
    if ":" in signs and any(re.fullmatch(r"0\d+", token.value) for token in tokens):
        raise Unreadable("a time")  # "2:05" is no ratio
    ends = (0, len(pieces) - 1) if set(signs) <= {"=", "approx"} else ()
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
    if (
        opening == "["
        and closing == "]"
        and [token.value for token in inside[:1]] == ["begin array"]
    ):
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
    """What stands in the braces of a set."""
    if not inside:
        return EmptySet()
    at = depths(inside)
    bars = [i for i, token in enumerate(inside) if at[i] == 0 and token.value in ("|", ":")]
    if len(bars) == 1:
        return read_builder(inside[: bars[0]], inside[bars[0] + 1 :])
    parts, _ = separated(inside)
    elements = [
        answer.parts if isinstance(answer, Collection) and not closes(part) else (answer,)
        for part in parts
        for answer in (read_undivided(part),)
    ]
    return Collection(tuple(part for parts in elements for part in parts), is_set=True)


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


def read_matrix(tokens: Tokens) -> Answer | None:
    """A matrix, with a factor before it or not; a definition by cases."""
    matrix = matrices.parts_of(tokens)
    if matrix is None:
        return None
    rows = [tuple(read_tokens(cell) for cell in cells) for cells in matrix.rows]
    return matrices.answer(matrix, rows)


def read_mixed(tokens: Tokens) -> Answer:
    """Words and mathematics in turns."""
    parts: list[Answer] = []
    run: list[Token] = []
    if not any(token.kind == "text" for token in tokens) or len(tokens) < 2:
        raise Unreadable("no kind of answer")
    for token, depth in zip(tokens, depths(tokens), strict=True):
        if token.kind == "text" and depth == 0:
            if run:
                parts.append(read_tokens(run))
                run = []
            parts.append(Text(token.value.strip(" ,;:.")))
        else:
            run.append(token)
    if len(run) == len(tokens):
        raise Unreadable("no kind of answer")
    if run:
        parts.append(read_tokens(run))
    return Mixed(tuple(parts))

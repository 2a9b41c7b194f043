"""An answer's cleaned text as tokens."""

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from answercheck import vocabulary
from answercheck.cleaning import ESCAPED_DOLLAR, closing_brace

MAX_TOKENS = 600
_LEXER = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>(?:\d+(?:\.(?!\.)\d*)?|\.\d+)(?:[eE][-+]?\d+(?![a-zA-Z\d.]))?)"
    r"|\\(?P<begin>begin|end)\s*\{(?P<name>[a-zA-Z]*)\*?\}(?:\s*(?:\[[a-z]\]\s*)?\{[clr|@ ]*\})?"
    r"|\\(?P<command>[a-zA-Z]+\*?|.)"
    r"|(?P<word>[a-zA-Z]+(?:\.[a-z]\.)?)"
    r"|(?P<sign>\*\*|<=|>=|!=|==|\.\.\.|.)",
    re.DOTALL,
)
_UPRIGHT_LETTERS = set("deixyzPETR")  # these are variables or constants, not units
_JOINING = re.compile(r"^(and|or|except)\s+|\s+(?:(and|or)|(except)(?: for)?)$")
_FUNCTION_AND_LETTER = re.compile(
    r"(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|ln|log|sqrt|pi)([a-zA-Z])"
)
INTRODUCTION = re.compile(
    r"((so|thus|therefore|hence),? )?(the )?((final|correct) )?"
    r"(answer|result|solution|option|choice)s?( is| are|:)?:?",
    re.IGNORECASE,
)


class Unreadable(ValueError):
    """The text is not in a notation that is understood."""


class Token(NamedTuple):
    kind: str  # "number", "letter", "command", "text" or "sign"
    value: str  # as written, commands without the backslash


Tokens = Sequence[Token]

_SIGNS = {
    "<=": Token("command", "le"), ">=": Token("command", "ge"), "!=": Token("command", "ne"),
    "...": Token("command", "ldots"), "**": Token("sign", "^"), "==": Token("sign", "="),
}  # fmt: skip


class Letters(Enum):
    """How plain letters after a number are read where they may be a unit or a product."""

    UNIT, SPACED_UNIT, PRODUCT = range(3)


def tokenise(text: str, in_text: bool = False, letters: Letters = Letters.UNIT) -> list[Token]:
    """The tokens of cleaned text. Unreadable where it is too long or a brace does not close."""
    result: list[Token] = []
    at = 0
    while match := _LEXER.match(text, at):
        start, at = at, match.end()
        kind = match.lastgroup or ""
        value = match[kind]
        value = vocabulary.SYNONYMS.get(value, value) if kind == "command" else value
        is_after_number = bool(result) and result[-1].kind == "number"
        if match["begin"]:
            result.append(Token("command", f"{match['begin']} {match['name']}"))
        elif kind == "command" and value.rstrip("*") in vocabulary.STYLING_COMMANDS:
            content, at = _argument(text, at)
            result += _styled(value.rstrip("*"), content)
        elif kind == "command" and value in {*"<>|[]()*':"}:
            result.append(Token("sign", value))  # "\\lvert" is "|"
        elif kind == "sign" and value in _SIGNS:
            result.append(_SIGNS[value])
        elif kind != "word":
            result += [Token(kind, value)] if kind != "space" else []
        elif (
            not in_text
            and letters is not Letters.PRODUCT
            and (is_after_number or (result and result[-1].value in vocabulary.WORDS_BEFORE_UNITS))
            and (unit := vocabulary.plain_units(text, start, letters is Letters.SPACED_UNIT))
        ):
            at = start + len(unit)
            result += _styled("text", unit)
        elif (in_text and value in vocabulary.SYMBOLS) or (
            (in_text or is_after_number) and value in vocabulary.WORDS_AFTER_NUMBERS
        ):
            result.append(Token("text", value))
        else:
            result += _word(value)
        if len(result) > MAX_TOKENS:
            raise Unreadable("too long")
    return result


def _argument(text: str, at: int) -> tuple[str, int]:
    """What stands in the braces from `at` on (or the one character there), and where it ends."""
    at += len(text[at:]) - len(text[at:].lstrip(" "))
    if text[at : at + 1] not in ("{", ""):
        return text[at], at + 1
    end = closing_brace(text, at)
    if end is None:
        raise Unreadable("a brace that does not close")
    return text[at + 1 : end], end + 1


def _styled(command: str, content: str) -> list[Token]:
    """Words are text, but anything with digits or commands in it is read as if it were plain."""
    content = content.replace("~", " ").strip()
    function = content.replace(" ", "")
    function = vocabulary.SYNONYMS.get(function, function)
    if command in vocabulary.FONTS:
        return tokenise(content)
    if command in ("operatorname", "mathrm"):
        if function in vocabulary.FUNCTIONS:
            return [Token("command", function)]
        if content in _UPRIGHT_LETTERS:
            return [Token("letter", content)]
    if any(character in content for character in "0123456789\\^=$+<>"):
        inside = tokenise(ESCAPED_DOLLAR.sub(" ", content), in_text=True)
        return [each._replace(kind="text") if each.kind == "letter" else each for each in inside]
    pieces = [piece for piece in _JOINING.split(content.strip(" ,;"), 1) if piece]
    if len(pieces) < 2:
        return [Token("text", content)] if content else []
    return [Token("text", piece.strip(" ,;")) for piece in pieces]  # "cm and" as two texts


def _word(word: str) -> list[Token]:
    """A run of plain letters: a command, a text, or a product of letters ("sinx", "abc")."""
    if word in vocabulary.WORD_COMMANDS:
        return [Token("command", vocabulary.WORD_COMMANDS[word])]
    if vocabulary.is_word(word):
        return [Token("text", word)]
    if split := _FUNCTION_AND_LETTER.fullmatch(word):
        return [Token("command", split[1]), Token("letter", split[2])]
    return [Token("letter", letter) for letter in word]


def literal(tokens: Tokens) -> str:
    """Tokens as a text that is equal for equal notation, words in any case."""
    return " ".join(x.value.casefold().strip() if x.kind == "text" else x.value for x in tokens)

"""Cleaned text as tokens."""

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.notation.cleaning import ESCAPED_DOLLAR
from unslothrl.rewards.maths.notation.vocabulary import (
    COMMAND_WORDS,
    FONTS,
    FUNCTIONS,
    STYLING_COMMANDS,
    SYNONYMS,
    WORD_COMMANDS,
    WORDS_AFTER_NUMBERS,
    WORDS_BEFORE_UNITS,
    is_word,
)
from unslothrl.rewards.maths.unit_names import SYMBOLS, plain_units

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
_JOINING = re.compile(r"^(and|or|except)\s+|\s+(and|or|except(?: for)?)$")


class Token(NamedTuple):
    kind: str  # "number", "letter", "command", "text" or "sign"
    value: str  # as written, commands without the backslash
    spaced: bool  # whether a space stands before it


Tokens = Sequence[Token]


class Letters(Enum):
    """How plain letters after a number are read where they may be a unit or a product."""

    UNIT, SPACED_UNIT, PRODUCT = range(3)


def tokenise(text: str, in_text: bool = False, letters: Letters = Letters.UNIT) -> list[Token]:
    """The tokens of cleaned text. Unreadable where it is too long or a brace does not close."""
    result: list[Token] = []
    at, spaced = 0, False
    while at < len(text):
        match = _LEXER.match(text, at)
        assert match is not None
        at = match.end()
        kind = match.lastgroup
        value = match[kind] if kind else ""
        if kind == "space":
            spaced = True
            continue
        if match["begin"]:
            result.append(Token("command", f"{match['begin']} {match['name']}", spaced))
        elif kind == "command" and value.rstrip("*") in STYLING_COMMANDS:
            content, at = _group(text, at)
            result += _styled(value.rstrip("*"), content, spaced)
        elif kind == "command":
            result.append(_command(value, spaced))
        elif kind == "word":
            unit = "" if in_text else _unit_at(text, match.start(), result, letters)
            if unit:
                at = match.start() + len(unit)
                result += _styled("text", unit, spaced)
            else:
                after_number = in_text or (bool(result) and result[-1].kind == "number")
                known = (after_number and value in WORDS_AFTER_NUMBERS) or (
                    in_text and value in SYMBOLS
                )
                result += [Token("text", value, spaced)] if known else _word(value, spaced)
        elif kind == "number":
            result.append(Token("number", value, spaced))
        else:
            result.append(_sign(value, spaced))
        spaced = False
        if len(result) > MAX_TOKENS:
            raise Unreadable("too long")
    return result


def _unit_at(text: str, at: int, before: list[Token], letters: Letters) -> str:
    """The unit in plain letters that begins at `at`, "" where none does."""
    if letters is Letters.PRODUCT or not before:
        return ""
    if before[-1].kind != "number" and before[-1].value not in WORDS_BEFORE_UNITS:
        return ""
    return plain_units(text, at, letters is Letters.SPACED_UNIT)


def _command(name: str, spaced: bool) -> Token:
    """A command under its usual name, as a sign where it is one: "\\lvert" is "|"."""
    name = SYNONYMS.get(name, name)
    if name in "<>|[]()*':":
        return Token("sign", name, spaced)
    return Token("command", name, spaced)


def _sign(value: str, spaced: bool) -> Token:
    as_command = {"<=": "le", ">=": "ge", "!=": "ne", "...": "ldots"}
    if value in as_command:
        return Token("command", as_command[value], spaced)
    return Token("sign", {"**": "^", "==": "="}.get(value, value), spaced)


def _group(text: str, at: int) -> tuple[str, int]:
    """What stands in the braces from `at` on (or the one character there), and where it ends."""
    while at < len(text) and text[at] == " ":
        at += 1
    if at < len(text) and text[at] != "{":
        return text[at], at + 1
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text[at:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[at + 1 : at + match.start()], at + match.end()
    raise Unreadable("a brace that does not close")


def _styled(command: str, content: str, spaced: bool) -> list[Token]:
    """Words are text, but anything with digits or commands in it is read as if it were plain."""
    content = content.replace("~", " ").strip()
    if not content:
        return []
    if command in FONTS:
        inside = tokenise(content)
    elif command in ("operatorname", "mathrm") and content.replace(" ", "") in FUNCTIONS:
        return [Token("command", content.replace(" ", ""), spaced)]
    elif command in ("operatorname", "mathrm") and content in _UPRIGHT_LETTERS:
        return [Token("letter", content, spaced)]
    elif any(character in content for character in "0123456789\\^=$+<>"):
        inside = [
            Token("text", token.value, token.spaced) if token.kind == "letter" else token
            for token in tokenise(ESCAPED_DOLLAR.sub(" ", content), in_text=True)
        ]
    else:
        return _split_text(content, spaced)
    if inside:
        inside[0] = inside[0]._replace(spaced=spaced)
    return inside


def _split_text(content: str, spaced: bool) -> list[Token]:
    """ "cm and" as two texts, so that what joins two parts stands alone."""
    bare = content.strip(" ,;")
    match = _JOINING.search(bare)
    if match is None:
        return [Token("text", content, spaced)]
    joins = (match[1] or match[2]).removesuffix(" for")
    rest = (bare[: match.start()] + bare[match.end() :]).strip(" ,;")
    first, second = (joins, rest) if match[1] else (rest, joins)
    return [Token("text", first, spaced), Token("text", second, True)]


def _word(word: str, spaced: bool) -> list[Token]:
    """A run of plain letters: a command, a text, or a product of letters ("sinx", "abc")."""
    if len(word) == 1:
        return [Token("letter", word, spaced)]
    if word in COMMAND_WORDS or word in WORD_COMMANDS:
        return [Token("command", WORD_COMMANDS.get(word, word), spaced)]
    if is_word(word):
        return [Token("text", word, spaced)]
    split = re.match(r"(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|ln|log|sqrt|pi)", word)
    if split and len(word) - len(split[0]) == 1:
        return [Token("command", split[0], spaced), Token("letter", word[-1], False)]
    return [Token("letter", letter, spaced and i == 0) for i, letter in enumerate(word)]

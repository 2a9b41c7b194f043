"""Which tokens belong together: brackets, separators, rows of a matrix."""

import re

from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.notation.tokens import Token, Tokens

_OPEN = {"(", "[", "{", "lset", "langle", "lfloor", "lceil"}
_CLOSE = {")", "]", "}", "rset", "rangle", "rfloor", "rceil"}
INTRODUCTION = re.compile(
    r"((so|thus|therefore|hence),? )?(the )?((final|correct) )?"
    r"(answer|result|solution|option|choice)s?( is| are|:)?:?",
    re.IGNORECASE,
)

MAX_PARTS = 60


def literal(tokens: Tokens) -> str:
    """Tokens as a text that is equal for equal notation, words in any case."""
    return " ".join(
        token.value.casefold().strip() if token.kind == "text" else token.value for token in tokens
    )


def trimmed(tokens: Tokens) -> Tokens:
    """Without separators at the ends, and without "the answer is" in front; "minus 7" as "-7"."""
    while tokens and tokens[-1].value in (",", ";", ".", "\\", "quad"):
        tokens = tokens[:-1]
    while tokens and tokens[0].value == "quad":
        tokens = tokens[1:]
    if tokens and tokens[0].kind == "text" and len(tokens) > 1:
        if INTRODUCTION.fullmatch(tokens[0].value.strip()):
            rest = 2 if tokens[1].value in (":", "=") else 1
            return trimmed(tokens[rest:])
        sign = tokens[0].value.strip().casefold()
        if sign in ("minus", "negative") and tokens[1].kind in ("number", "command"):
            return [tokens[0]._replace(kind="sign", value="-"), *tokens[1:]]
        words = 0
        while words < len(tokens) and tokens[words].kind == "text" and words < 5:
            words += 1
        joined = " ".join(token.value for token in tokens[:words])
        if words > 1 and words < len(tokens) and INTRODUCTION.fullmatch(joined):
            rest = words + (tokens[words].value in (":", "="))
            return trimmed(tokens[rest:])
    return tokens


def depths(tokens: Tokens) -> list[int]:
    """At each token, how many brackets are open; a bracket itself counts as outside of it."""
    depth, result = 0, []
    for token in tokens:
        if token.kind != "text" and (token.value in _CLOSE or token.value.startswith("end ")):
            depth -= 1
        result.append(depth)
        if token.kind != "text" and (token.value in _OPEN or token.value.startswith("begin ")):
            depth += 1
    return result


def closes(tokens: Tokens) -> bool:
    """Whether the first token is a bracket that the last one closes."""
    if len(tokens) < 2 or tokens[0].kind == "text" or tokens[-1].kind == "text":
        return False
    if tokens[0].value not in _OPEN or tokens[-1].value not in _CLOSE:
        return False
    return all(depth > 0 for depth in depths(tokens)[1:-1])


def connective(token: Token) -> str:
    """ "and", "or" or "," where the token separates two parts, else ""."""
    if token.kind == "text":
        word = token.value.strip(" ,;").casefold()
        return word if word in ("and", "or") else "," if not word else ""
    if token.kind == "command":
        return {"and": "and", "or": "or", "\\": ",", "quad": ",", "&": "and"}.get(token.value, "")
    return "," if token.value in (",", ";") else ""


def separated(tokens: Tokens) -> tuple[list[Tokens], set[str]]:
    """The parts of a list, and what stands between them."""
    parts: list[Tokens] = []
    words: list[str] = []
    begun = 0
    for at, (token, depth) in enumerate(zip(tokens, depths(tokens), strict=True)):
        word = connective(token) if depth == 0 else ""
        if not word:
            continue
        if at > begun:
            parts.append(tokens[begun:at])
            words.append(word)
        elif words and word != ",":
            words[-1] = word  # ", and"
        begun = at + 1
    if begun < len(tokens):
        parts.append(tokens[begun:])
    if len(parts) > MAX_PARTS:
        raise Unreadable("too many parts")
    return parts, set(words[: len(parts) - 1])


def split(tokens: Tokens, command: str) -> list[Tokens]:
    """The rows (`\\\\`) or cells (`&`) of a matrix that are not empty."""
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.kind in ("command", "sign") and token.value == command:
            parts.append([])
        elif token.value != "hline":
            parts[-1].append(token)
    return [part for part in parts if part]

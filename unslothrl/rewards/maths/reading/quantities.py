"""Numbers and expressions, with a unit or without; digits in another base; named constants."""

import re
from fractions import Fraction

from unslothrl.rewards.maths import regions, units
from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.expressions.parser import expressions
from unslothrl.rewards.maths.kinds import (
    Answer,
    BasedNumber,
    Collection,
    EmptySet,
    Infinity,
    Literal,
    Region,
    Value,
)
from unslothrl.rewards.maths.notation.brackets import literal
from unslothrl.rewards.maths.notation.tokens import Tokens
from unslothrl.rewards.maths.notation.vocabulary import NUMBER_WORDS

_TIMES = {"times", "cdot"}


def read_value(tokens: Tokens) -> Answer | None:
    """A number or expression, with a unit or without; two of them where `\\pm` stands in it."""
    tokens, currency = without_currency(tokens)
    body, tail = split_at_unit(tokens)
    if not body:
        return None
    words = literal(tail).strip(" .")
    degrees = degrees_of(body, words) if tail else degrees_of(body[:-1], body[-1].value)
    unit, function = currency, ""
    if words in ("percent", "per cent", "percents", "pct"):
        function = "percent"
    elif words in ("degrees", "degree", "deg"):
        function = "degree"
    elif degrees is not None:
        body, unit = degrees
    elif tail:
        try:
            unit = units.product((*currency, *units.read(tail)))
        except Unreadable:
            return None
        if currency and unit == units.product((*currency, *currency)):
            unit = currency  # $5 dollars
    while tail and body and body[-1].value in ("-", "{", "cdot", "times", "*"):
        body = body[:-1]  # "6-inch"
    if not body:
        return None
    try:
        trees = expressions(body)
    except Unreadable:
        return None
    if function:
        trees = [("call", function, tree) for tree in trees]
    is_part = words.startswith("of ") and any(token.value == "/" for token in body)
    is_counted = units.is_counted(words, is_part or body[0].value in ("1", "frac"))
    values = tuple(Value(tree, unit, is_rounded(body), is_counted) for tree in trees)
    return values[0] if len(values) == 1 else Collection(values)


def split_at_unit(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """-> (the number or expression, the words and signs after it)."""
    start = next((i for i, token in enumerate(tokens) if token.kind == "text"), len(tokens))
    if 1 < start < len(tokens) and tokens[start - 1].value == "mu":
        start -= 1  # micro
    if start == len(tokens) > 1:
        last, others = tokens[-1], tokens[:-1]
        is_ohm = last.value == "Omega" and all(token.kind != "letter" for token in others)
        if is_ohm or last.value in ("pounds", "euro", "AA", "$"):
            start -= 1
    return tokens[:start], tokens[start:]


def without_currency(tokens: Tokens) -> tuple[Tokens, units.Unit]:
    """ "\\$5" and "-\\$5" without the sign, and the unit that it is."""
    for at in (0, 1):
        if len(tokens) > at + 1 and tokens[at].kind == "command":
            name = tokens[at].value
            if name in ("$", "pounds", "euro") and (at == 0 or tokens[0].value in "+-"):
                unit = units.name_of(name if name == "$" else "\\" + name)
                return [*tokens[:at], *tokens[at + 1 :]], ((unit, Fraction(1)),)
    return tokens, ()


def degrees_of(body: Tokens, scale: str) -> tuple[Tokens, units.Unit] | None:
    """ "37^\\circ\\text{C}": the number and the scale."""
    name = {"c": "degC", "f": "degF", "celsius": "degC", "fahrenheit": "degF"}.get(scale.lower())
    values = [token.value for token in body]
    length = 2 if values[-2:] == ["^", "circ"] else 4 if values[-3:-1] == ["{", "circ"] else 0
    if name is None or not length or len(body) <= length:
        return None
    return body[:-length], ((name, Fraction(1)),)


def is_rounded(tokens: Tokens) -> bool:
    """Whether it is a decimal with a point, alone or times a power of ten."""
    numbers = [token.value for token in tokens if token.kind == "number"]
    others = [token.value for token in tokens if token.kind != "number"]
    if not numbers or "." not in numbers[0]:
        return False
    return (len(numbers) == 1 and set(others) <= {"-", "+"}) or (
        numbers[1:2] == ["10"] and len(numbers) == 3 and set(others) <= set("-+{}^*") | _TIMES
    )


def read_named(tokens: Tokens) -> Answer | None:
    """Infinity, the empty set, the real numbers."""
    values = [token.value for token in tokens if token.value not in "{}()" or token.kind != "sign"]
    if values and values[-1] == "infty" and values[:-1] in ([], ["+"], ["-"]):
        return Infinity(-1 if values[0] == "-" else 1)
    if values == ["emptyset"]:
        return EmptySet()
    if values == ["mathbb", "R"]:
        return Region(regions.EVERYTHING)
    if values and values[0] in ("ldots",) and len(values) == 1:
        return Literal("...")
    return None


def read_based(tokens: Tokens) -> Answer | None:
    """ "52_8", "1A_{16}", "52_{\\text{eight}}"."""
    values = [token.value for token in tokens]
    if "_" not in values:
        return None
    at = values.index("_")
    digits = [token for token in tokens[:at] if token.value not in "(){}"]
    name = "".join(values[at + 1 :]).strip("{}() ").removeprefix("base").strip()
    name = str(NUMBER_WORDS.get(name, name))
    if not digits or not all(token.kind in ("number", "letter", "text") for token in digits):
        return None
    text = "".join(token.value for token in digits)
    if not name.isdecimal() or not re.fullmatch(r"\d[\dA-Z.]*|[A-F][\dA-F]*\d[\dA-F]*", text):
        return None
    return BasedNumber(text, str(int(name)))

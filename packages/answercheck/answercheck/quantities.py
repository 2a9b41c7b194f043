"""Numbers and expressions, with a unit or without; digits in another base; named constants."""

import re
from fractions import Fraction

from answercheck import regions, units
from answercheck.kinds import Answer, Collection, Literal, Region, Unit, Value
from answercheck.parser import expressions
from answercheck.tokens import Tokens, Unreadable, literal
from answercheck.vocabulary import NUMBER_WORDS

_SCALES = {"c": "degC", "f": "degF", "celsius": "degC", "fahrenheit": "degF"}
_MARKS = {"percent": "percent", "per cent": "percent", "percents": "percent", "pct": "percent",
          "degrees": "degree", "degree": "degree", "deg": "degree"}  # fmt: skip


def read_value(tokens: Tokens) -> Answer | None:
    """A number or expression, with a unit or without; two of them where `\\pm` stands in it."""
    tokens, currency = without_currency(tokens)
    body, tail = split_at_unit(tokens)
    words = literal(tail).strip(" .")
    mark, unit = _MARKS.get(words, ""), currency
    degrees = degrees_of(body, words) if tail else degrees_of(body[:-1], literal(body[-1:]))
    try:
        if degrees is not None and not mark:
            body, unit = degrees
        elif tail and not mark:
            unit = units.product((*currency, *units.read(tail)))
            if currency and unit == units.product((*currency, *currency)):
                unit = currency  # $5 dollars
        while tail and body and body[-1].value in ("-", "{", "cdot", "times", "*"):
            body = body[:-1]  # "6-inch"
        trees = expressions(body)
    except Unreadable:
        return None
    if mark:
        trees = [("call", mark, tree) for tree in trees]
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
        start -= is_ohm or last.value in ("pounds", "euro", "AA", "$")
    return tokens[:start], tokens[start:]


def without_currency(tokens: Tokens) -> tuple[Tokens, Unit]:
    """ "\\$5" and "-\\$5" without the sign, and the unit that it is."""
    at = int(bool(tokens) and tokens[0].value in ("+", "-"))
    if len(tokens) > at + 1 and tokens[at].value in ("$", "pounds", "euro"):
        name = tokens[at].value
        unit = units.name_of(name if name == "$" else "\\" + name)
        return [*tokens[:at], *tokens[at + 1 :]], ((unit, Fraction(1)),)
    return tokens, ()


def degrees_of(body: Tokens, scale: str) -> tuple[Tokens, Unit] | None:
    """ "37^\\circ\\text{C}": the number and the scale."""
    name = _SCALES.get(scale.lower())
    values = [token.value for token in body]
    length = 2 if values[-2:] == ["^", "circ"] else 4 if values[-3:-1] == ["{", "circ"] else 0
    if name is None or not length or len(body) <= length:
        return None
    return body[:-length], ((name, Fraction(1)),)


def is_rounded(tokens: Tokens) -> bool:
    """Whether it is a decimal with a point, alone or times a power of ten."""
    numbers = [token.value for token in tokens if token.kind == "number"]
    others = {token.value for token in tokens if token.kind != "number"}
    if not numbers or "." not in numbers[0]:
        return False
    return (len(numbers) == 1 and others <= {"-", "+"}) or (
        numbers[1:2] == ["10"] and len(numbers) == 3 and others <= {*"-+{}^*", "times", "cdot"}
    )


def read_named(tokens: Tokens) -> Answer | None:
    """Infinity, the empty set, the real numbers, dots; a number whose base is named, such as
    "52_8", "1A_{16}" and "52_{\\text{eight}}"."""
    tokens = [token for token in tokens if token.kind != "sign" or token.value not in "{}()"]
    values = [token.value for token in tokens]
    if values[-1:] == ["infty"] and values[:-1] in ([], ["+"], ["-"]):
        return Value(regions.MINUS_INFINITY if values[0] == "-" else regions.PLUS_INFINITY)
    if values == ["emptyset"]:
        return Region(())
    if values == ["mathbb", "R"]:
        return Region(regions.EVERYTHING)
    if values == ["ldots"]:
        return Literal("...")
    at = values.index("_") if "_" in values else 0
    digits, base = "".join(values[:at]), "".join(values[at + 1 :]).strip()
    base = base.removeprefix("base").strip()
    base = str(NUMBER_WORDS.get(base, base))
    if not base.isdecimal() or any(token.kind in ("sign", "command") for token in tokens[:at]):
        return None
    if not re.fullmatch(r"\d[\dA-Z.]*|[A-F][\dA-F]*\d[\dA-F]*", digits):
        return None
    return Literal(f"{digits}_{int(base)}")

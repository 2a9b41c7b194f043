"""Units of measurement as powers of names: "m/s^2" is m: 1, s: -2. EmptySet is converted."""

import re
from collections.abc import Sequence
from fractions import Fraction

from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.expressions.tree import Tree
from unslothrl.rewards.maths.notation.tokens import Tokens
from unslothrl.rewards.maths.notation.vocabulary import GREEK_LETTERS, NUMBER_WORDS, words
from unslothrl.rewards.maths.unit_names import ALIASES, COMPOUND, KNOWN

Unit = tuple[tuple[str, Fraction], ...]

_NOT_UNITS = set(
    words(
        """or and not nor is are if but either neither none no never almost about approximately
        except only when where for all any other than less more greater least most at between
        to mod am pm a.m p.m maybe possibly base undefined plus minus over times percent pct
        percentage pair couple dozen half halve third quarter was has does this fewer
        remainder divided lakh crore myriad gross grosse googol permille"""
    )
)
_NUMBER_NOUN = re.compile(  # "tenth", "quadrillion"
    r"(.*(ie|teen)|fif|eigh|nin|twelf|" + "|".join(NUMBER_WORDS) + ")th|.*illi(on|ard)"
)
_OPERATION = re.compile(
    r"scores?( .*)?|(.* )?(double|triple|reciprocal|inverse|negative|opposite|factorial|basis point"
    rf"|{'|'.join(GREEK_LETTERS)})s?"
)
_AFTER_NOUNS = {"old", "long", "wide", "tall", "high", "deep", "each", "total", "left", "remaining"}
_PLURALS = {"people", "men", "women", "children", "feet", "teeth", "mice", "geese", "fish", "sheep"}
_WORD = re.compile(r"[A-Za-z$¢][A-Za-z.\-']*")
_COMPOUND = re.compile(r"\b(?:" + "|".join(COMPOUND) + r")\b")
_LETTERS = re.compile(r"[a-z]+(?:['-][a-z]+)*")
_HYPHEN = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)+")
_DIMENSION = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}


def name_of(word: str) -> str:
    """The name that a spelling stands for; the case of short ones counts (mL is not ML)."""
    word = word.rstrip(".")
    if word in ALIASES:
        return ALIASES[word]
    word = word.lower() if len(word) > 2 else word
    for spelling in (word, word.removesuffix("s"), word.removesuffix("es")):
        if spelling in ALIASES:
            return ALIASES[spelling]
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word.removesuffix("s") if len(word) > 3 else word


def is_counted(phrase: str, is_one: bool) -> bool:
    """Whether the words after a number say what is counted: a noun in the plural, or in the
    singular after 1 and a fraction, perhaps with words before it and "of ..." after it, and none
    that makes it another number: "red balls", "cups of coffee", "years old"; not "thousand
    apples", "tenths", "squared", "over"."""
    things = phrase.removeprefix("of ").split(" of ")[0]
    parts = [word for word in things.split() if word not in ("a", "an", "the")]
    while len(parts) > 1 and parts[-1] in _AFTER_NOUNS:
        parts.pop()
    if not parts or not all(len(word) > 2 and _LETTERS.fullmatch(word) for word in parts):
        return False
    if _OPERATION.fullmatch(" ".join(parts)):
        return False
    for word in phrase.split():
        name = word.removesuffix("s")
        if {word, name} & (_NOT_UNITS | NUMBER_WORDS.keys()) or _NUMBER_NOUN.fullmatch(name):
            return False
    head = parts[-1]
    if is_one and not head.endswith(("ed", "ing", "ly")):
        return True
    return head in _PLURALS or (head[-1] == "s" and not head.endswith(("ss", "us", "is")))


def is_known(unit: Unit) -> bool:
    return all(name in KNOWN for name, _ in unit)


def product(powers: Sequence[tuple[str, Fraction]]) -> Unit:
    """The unit that powers of names are together, in the order of the names."""
    total: dict[str, Fraction] = {}
    for name, power in powers:
        total[name] = total.get(name, Fraction(0)) + power
    return tuple(sorted((name, power) for name, power in total.items() if power))


def read(tokens: Tokens) -> Unit:
    """The unit that these tokens are, all of them. Unreadable."""
    powers: list[tuple[str, Fraction]] = []
    below = within = False  # after a slash; in the brackets after it
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token.value in ("/",):
            below = True
        elif token.value in ("cdot", "times", "*"):
            below = below and within
        elif token.value in ("(", ")"):
            within = token.value == "("
            below = below and within
        elif token.value == "^" and powers:
            power, at = exponent(tokens, at)
            name, sign = powers.pop()
            powers.append((name, sign * power))
        elif token.value == "mu" and at < len(tokens) and tokens[at].kind in ("text", "letter"):
            new, below = units_of("u" + tokens[at].value.strip(), below, within)
            powers += new
            at += 1
        elif token.value == "Omega" and powers and powers[-1][0] in ("k", "M"):
            prefix, power = powers.pop()
            powers.append((prefix + "ohm", power))
        elif token.kind in ("text", "letter", "command"):
            text = token.value if token.kind != "command" else "\\" + token.value
            new, below = units_of(text, below, within)
            powers += new
        else:
            raise Unreadable("unit")
    powers = [(name, power) for name, power in powers if name not in _AFTER_NOUNS] or powers
    if not powers:
        raise Unreadable("unit")
    return product(powers)


def units_of(text: str, below: bool, within: bool) -> tuple[list[tuple[str, Fraction]], bool]:
    """The units of a text such as "feet per second" or "square cm"."""
    powers: list[tuple[str, Fraction]] = []
    dimension = 1
    if text.startswith("\\"):
        if text not in ALIASES:
            raise Unreadable("unit")
        return [(ALIASES[text], Fraction(-1 if below else 1))], below and within
    text = _HYPHEN.sub(
        lambda match: match[0] if name_of(match[0]) in KNOWN else " ".join(match[0].split("-")),
        text,
    )
    text = _COMPOUND.sub(lambda match: COMPOUND[match[0]], text)
    for part in re.findall(r"\^?\{?-?\d+\}?|/|[^\s/^{}]+", text):
        if part in ("per", "/"):
            below = True
        elif part in ("a", "an", "of", "the") or part in "()":
            continue
        elif part.lower().rstrip(".") in _DIMENSION:
            dimension = _DIMENSION[part.lower().rstrip(".")]
        elif part.lower() in ("squared", "cubed") and powers:
            name, sign = powers.pop()
            powers.append((name, sign * (2 if part.lower() == "squared" else 3)))
        elif _WORD.fullmatch(part) and part.lower().strip(".") not in _NOT_UNITS:
            powers.append((name_of(part), Fraction(-dimension if below else dimension)))
            dimension, below = 1, below and within
        else:
            raise Unreadable("unit")
    if len(powers) > 4:
        raise Unreadable("unit")
    return powers, below


def exponent(tokens: Tokens, at: int) -> tuple[Fraction, int]:
    """The exponent that begins at `at`, and where it ends. Unreadable."""
    text = ""
    braces = at < len(tokens) and tokens[at].value == "{"
    at += braces
    while (at < len(tokens) and tokens[at].value in ("-", "+")) or (
        at < len(tokens) and tokens[at].kind == "number" and not text.strip("+-")
    ):
        text += tokens[at].value
        at += 1
    if braces:
        if at >= len(tokens) or tokens[at].value != "}":
            raise Unreadable("exponent of a unit")
        at += 1
    try:
        return Fraction(text), at
    except ValueError:
        raise Unreadable("exponent of a unit") from None


def of_product(tree: Tree) -> tuple[Tree, Unit] | None:
    """ "15 m/s" as an expression: the number and the letters after it."""
    factors = tree[1:] if tree[0] == "mul" else ()
    rest: list[Tree] = []
    powers: list[tuple[str, Fraction]] = []
    for factor in factors:
        base, power = factor, Fraction(1)
        while base[0] == "pow" and base[2][0] == "number":
            base, power = base[1], power * base[2][1]
        if base[0] == "symbol" and (base[1] in ALIASES) and base[1] not in ("e", "i"):
            powers.append((ALIASES[base[1]], power))
        else:
            rest.append(factor)
    if ("symbol", "\\mu") in rest and len(powers) == 1:
        rest.remove(("symbol", "\\mu"))
        powers = [("u" + name, power) for name, power in powers]
    if not powers or not rest:
        return None
    return (rest[0] if len(rest) == 1 else ("mul", *rest)), product(powers)

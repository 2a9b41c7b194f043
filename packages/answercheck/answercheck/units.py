"""Units of measurement as powers of names: "m/s^2" is m: 1, s: -2. Nothing is converted."""

import re
from collections.abc import Iterable
from fractions import Fraction

from answercheck.kinds import Unit, Value
from answercheck.tokens import Tokens, Unreadable
from answercheck.trees import Tree, mul
from answercheck.vocabulary import ALIASES, COMPOUND, GREEK_LETTERS, KNOWN, NUMBER_WORDS, word_set

_NOT_UNITS = word_set(
    """or and not nor is are if but either neither none no never almost about approximately
        except only when where for all any other than less more greater least most at between
        to mod am pm a.m p.m maybe possibly base undefined plus minus over times percent pct
        percentage pair couple dozen half halve third quarter was has does this fewer
        remainder divided lakh crore myriad gross grosse googol permille"""
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
_MICRO, _KILOHM = re.compile(r"\\mu\s+"), re.compile(r"\b([kM]) \\Omega")
_PARTS = re.compile(r"\^\s*\{?\s*(?P<power>(?:[-+] )*-?\d[\d.]*)\s*\}?|/|[^\s/^{}]+|\S")
ARTICLES = {"a", "an", "the", "of"}
_HYPHEN = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)+")
_POWERS = {"squared": 2, "cubed": 3}
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
    """Whether words after a number say what is counted: "red balls", "cups of coffee"; not what
    makes it another number: "thousand apples", "tenths", "squared"."""
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


def product(powers: Iterable[tuple[str, Fraction]]) -> Unit:
    total: dict[str, Fraction] = {}
    for name, power in powers:
        total[name] = total.get(name, Fraction(0)) + power
    return tuple(sorted((name, power) for name, power in total.items() if power))


def read(tokens: Tokens) -> Unit:
    """ "feet per second", "J/(mol K)", "square cm". Unreadable."""
    text = " ".join("\\" * (token.kind == "command") + token.value for token in tokens)
    for compound in _HYPHEN.findall(text):  # "foot-pounds"
        if name_of(compound) not in KNOWN:
            text = text.replace(compound, compound.replace("-", " "))
    text = _COMPOUND.sub(lambda match: COMPOUND[match[0]], text)
    text = _KILOHM.sub(r"\1ohm", _MICRO.sub("u", text))
    powers: list[tuple[str, Fraction]] = []
    below = within = False  # after a slash; in the brackets after it
    dimension = 1
    for part in _PARTS.finditer(text):
        word = part[0].lower().rstrip(".")
        if part[0] in ("per", "/"):
            below = True
        elif part[0] in ("\\cdot", "\\times", "*"):
            below = below and within
        elif part[0] in ("(", ")"):
            within = part[0] == "("
            below = below and within
        elif (part["power"] or word in _POWERS) and powers:
            name, sign = powers.pop()
            powers.append(
                (name, sign * Fraction(_POWERS.get(word) or part["power"].replace(" ", "")))
            )
        elif word in _DIMENSION:
            dimension = _DIMENSION[word]
        elif word in _NOT_UNITS or not (_WORD.fullmatch(part[0]) or part[0] in ALIASES):
            raise Unreadable("unit")
        elif part[0] not in ARTICLES:
            powers.append((name_of(part[0]), Fraction(-dimension if below else dimension)))
            dimension, below = 1, below and within
    powers = [(name, power) for name, power in powers if name not in _AFTER_NOUNS] or powers
    if not powers or sum(len(name) > 1 for name, _ in powers) > 4:
        raise Unreadable("unit")
    return product(powers)


def of_product(value: Value) -> Value:
    """ "15 m/s" as an expression: the number, with the letters after it as its unit."""
    rest: list[Tree] = []
    powers: list[tuple[str, Fraction]] = []
    for factor in value.tree[1:] if value.tree[0] == "mul" else ():
        base, power = factor, Fraction(1)
        while base[0] == "pow" and base[2][0] == "number":
            base, power = base[1], power * base[2][1]
        if base[0] == "symbol" and base[1] in ALIASES and base[1] not in ("e", "i"):
            powers.append((ALIASES[base[1]], power))
        else:
            rest.append(factor)
    if ("symbol", "\\mu") in rest and len(powers) == 1:
        rest.remove(("symbol", "\\mu"))
        powers = [("u" + name, power) for name, power in powers]
    return Value(mul(*rest), product(powers), value.rounded) if powers and rest else value

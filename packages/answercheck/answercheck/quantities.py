"""Numbers and expressions, with a unit or without; named constants; answers in words. A unit is
powers of names: "m/s^2" is m: 1, s: -2. Nothing is converted."""

import re
from collections.abc import Iterable
from fractions import Fraction

from answercheck import regions
from answercheck.kinds import Answer, Collection, Literal, Region, Row, Text, Unit, Value
from answercheck.parser import expressions
from answercheck.tokens import INTRODUCTION, Tokens, Unreadable, literal
from answercheck.trees import Tree, mul, number
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
_AFTER_NOUNS = word_set("old long wide tall high deep each total left remaining later in")
_NO_OTHER_NUMBER = re.compile(r"\bordered (?:pair|triple|quadruple)s\b|\bzeroe?s\b")
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
_SCALES = {"c": "degC", "f": "degF", "celsius": "degC", "fahrenheit": "degF"}
_MARKS = {"percent": "percent", "per cent": "percent", "percents": "percent", "pct": "percent",
          "degrees": "degree", "degree": "degree", "deg": "degree"}  # fmt: skip
_ROUNDED = re.compile(  # a decimal with a point, alone or times a power of ten
    r"[-+]*\d*\.\d*(?:[eE][-+]?\d+)?(?:(?:times|cdot|\*)10\^[-+{}\d]+)?"
)
_NO_SOLUTION = re.compile(
    r"(there (is|are) )?no (solutions?|such \w+ exists?)( exists?)?|(the )?empty set"
)
_ALL_REALS = re.compile(r"(the )?(set of )?(all )?(the )?(real numbers|reals|real numbers x)")
_NAMED: dict[str, Answer] = {
    **dict.fromkeys(("infty", "+ infty", "infinity"), Value(regions.PLUS_INFINITY)),
    "positive infinity": Value(regions.PLUS_INFINITY),
    **dict.fromkeys(("- infty", "negative infinity"), Value(regions.MINUS_INFINITY)),
    "emptyset": Region(()),
    "mathbb R": Region(regions.EVERYTHING),
    "ldots": Literal("..."),
    **dict.fromkeys(("dne", "does not exist", "doesn't exist", "do not exist"), Text("DNE")),
}
LONGEST_NUMBER = 20  # words
PARTS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fifth": 5, "eighth": 8, "ninth": 9}
PARTS |= {f"{word}th": NUMBER_WORDS[word] for word in ("four", "six", "seven", "ten", "hundred")}


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
            unit = product((*currency, *read_unit(tail)))
            if currency and len(words) == 1 and words.isalpha():
                return None  # "$5 M"
            if currency and unit == product((*currency, *currency)):
                unit = currency  # $5 dollars
        while tail and body and body[-1].value in ("-", "{", "cdot", "times", "*"):
            body = body[:-1]  # "6-inch"
        trees = expressions(body)
    except Unreadable:
        return None
    if mark:
        trees = [("call", mark, tree) for tree in trees]
    is_part = words.startswith("of ") and any(token.value == "/" for token in body)
    if currency and words.split(" ")[0] in ("each", "per"):
        words = "dollars " + words
    counted = is_counted(words, is_part or body[0].value in ("1", "frac"))
    is_rounded = _ROUNDED.fullmatch("".join(token.value for token in body)) is not None
    values = tuple(Value(tree, unit, is_rounded, counted) for tree in trees)
    return values[0] if len(values) == 1 else Collection(values)


def split_at_unit(tokens: Tokens) -> tuple[Tokens, Tokens]:
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
        unit = name_of(name if name == "$" else "\\" + name)
        return [*tokens[:at], *tokens[at + 1 :]], ((unit, Fraction(1)),)
    return tokens, ()


def degrees_of(body: Tokens, scale: str) -> tuple[Tokens, Unit] | None:
    """ "37^\\circ\\text{C}": the number and the scale."""
    name = _SCALES.get(scale.lower())
    is_degree = len(body) > 2 and [token.value for token in body[-2:]] == ["^", "circ"]
    return (body[:-2], ((name, Fraction(1)),)) if name and is_degree else None


def read_named(tokens: Tokens) -> Answer | None:
    """Infinity, the empty set, the real numbers, dots; a number whose base is named ("52_8")."""
    tokens = [token for token in tokens if token.kind != "sign" or token.value not in "{}()"]
    values = [token.value for token in tokens]
    if named := _NAMED.get(" ".join(values)):
        return named
    at = values.index("_") if "_" in values else 0
    digits, base = "".join(values[:at]), "".join(values[at + 1 :]).strip()
    base = base.removeprefix("base").strip()
    base = str(NUMBER_WORDS.get(base, base))
    if not base.isdecimal() or any(token.kind in ("sign", "command") for token in tokens[:at]):
        return None
    if not re.fullmatch(r"\d[\dA-Z.]*|[A-F][\dA-F]*\d[\dA-F]*", digits):
        return None
    return Literal(f"{digits}_{int(base)}")


def read_words(text: str) -> Answer:
    words = " ".join(text.replace("( ", "(").replace(" )", ")").split()).strip(" .,;:!")
    introduction, _, last = words.rpartition(" ")
    if len(last.strip("()")) == 1 and INTRODUCTION.fullmatch(introduction):
        words = last  # "option A"
    folded = words.casefold()
    if _NO_SOLUTION.fullmatch(folded):
        return Region(())
    if _ALL_REALS.fullmatch(folded):
        return Region(regions.EVERYTHING)
    answer = _NAMED.get(folded) or worded(folded)
    if answer is not None:
        return answer
    parts = [part for part in re.split(r"\s*[,;]\s*(?:and |or )?|\s+(?:and|or)\s+", words) if part]
    if len(parts) < 2:
        return Text(words)
    is_either = re.search(r"\bor\b", folded) is not None  # says less than "and"
    parts = sorted(parts, key=str.casefold) if is_either else parts
    answers = tuple(worded(part.casefold()) or Text(part) for part in parts)
    return Row("or", answers) if is_either else Collection(answers)


def worded(folded: str) -> Value | None:
    """ "seven", "minus twenty-one", "two thirds", "one hundred and five apples"."""
    words = folded.replace("-", " ").split()
    is_negative = folded.startswith(("-", "minus ", "negative "))
    words = words[is_negative and words[0] in ("minus", "negative") :]
    for end in range(min(len(words), LONGEST_NUMBER), 0, -1):
        size = number_of(words[:end])
        if size is None:
            continue
        value, things = Fraction(-size if is_negative else size), words[end:]
        if len(things) == 1 and (parts := PARTS.get(things[0].removesuffix("s"))):
            return Value(number(value / parts))
        if things and not is_counted(" ".join(things), size == 1):
            return None
        names = [(name_of(word), Fraction(1)) for word in things if word not in ARTICLES]
        return Value(number(value), product(names), counted=bool(things))
    return None


def number_of(words: list[str]) -> int | None:
    total = group = 0
    scale, is_open = 10**15, False  # of the last group; whether "and" may follow
    for word in words:
        number = NUMBER_WORDS.get(word)
        if number is None or (number == 0 and len(words) > 1):
            if word != "and" or not is_open:
                return None
        elif number < 100:
            if group % 100 and not (number < 10 and group % 10 == 0 and group % 100 >= 20):
                return None
            group += number
        elif number == 100 and 0 < group < 100:
            group *= number
        elif 100 < number < scale and group:
            total, group, scale = total + group * number, 0, number
        else:
            return None
        is_open = number is not None and number >= 100
    return total + group if words and words[-1] != "and" else None


def name_of(word: str) -> str:
    """The name that a spelling stands for; the case of short ones counts (mL is not ML)."""
    word = word.rstrip(".")
    folded = word.lower() if len(word) > 2 else word
    for spelling in (word, folded, folded.removesuffix("s"), folded.removesuffix("es")):
        if spelling in ALIASES:
            return ALIASES[spelling]
    if folded.endswith("ies"):
        return folded[:-3] + "y"
    return folded.removesuffix("s") if len(folded) > 3 else folded


def is_counted(phrase: str, is_one: bool) -> bool:
    """Whether words after a number say what is counted: "red balls", "cups of coffee"; not what
    makes it another number: "thousand apples", "tenths", "squared"."""
    phrase = _NO_OTHER_NUMBER.sub("things", phrase).replace("/", " per ")
    things, *per = phrase.removeprefix("of ").split(" per ")
    parts = [word for word in things.split(" of ")[0].split() if word not in ("a", "an", "the")]
    while len(parts) > 1 and parts[-1] in _AFTER_NOUNS:
        parts.pop()
    are_words = all(len(word) > 2 and _LETTERS.fullmatch(word) for word in (*parts, *per))
    if not parts or not are_words or _OPERATION.fullmatch(" ".join(parts)):
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


def read_unit(tokens: Tokens) -> Unit:
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
        elif part[0] in ("\\cdot", "\\times", "*", "(", ")"):
            within = part[0] == "(" or (within and part[0] != ")")
            below = below and within
        elif (part["power"] or word in _POWERS) and powers:
            name, sign = powers.pop()
            power = Fraction(_POWERS.get(word) or part["power"].replace(" ", ""))
            powers.append((name, sign * power))
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

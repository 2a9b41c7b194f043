"""Answers in words."""

import re
from fractions import Fraction

from unslothrl.rewards.maths import regions, units
from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.kinds import (
    Answer,
    Collection,
    EmptySet,
    Infinity,
    Region,
    Row,
    Text,
    Value,
)
from unslothrl.rewards.maths.notation.brackets import INTRODUCTION
from unslothrl.rewards.maths.notation.tokens import Tokens
from unslothrl.rewards.maths.notation.vocabulary import NUMBER_WORDS

_NO_SOLUTION = re.compile(
    r"(there (is|are) )?no (solutions?|such \w+ exists?)( exists?)?|(the )?empty set|"
    r"no solutions? exists?"
)
_ARTICLES = {"a", "an", "the", "of"}
LONGEST_NUMBER = 20  # words
PARTS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fifth": 5, "eighth": 8, "ninth": 9}
PARTS |= {f"{word}th": NUMBER_WORDS[word] for word in ("four", "six", "seven", "ten", "hundred")}
_ALL_REALS = re.compile(r"(the )?(set of )?(all )?(the )?(real numbers|reals|real numbers x)")


def read_words(tokens: Tokens) -> Answer:
    """Words alone: one text, or a list of texts."""
    text = " ".join(token.value for token in tokens)
    words = " ".join(text.replace("( ", "(").replace(" )", ")").split()).strip(" .,;:!")
    introduction, _, last = words.rpartition(" ")
    if len(last.strip("()")) == 1 and INTRODUCTION.fullmatch(introduction):
        words = last  # "option A"
    folded = words.casefold()
    if _NO_SOLUTION.fullmatch(folded):
        return EmptySet()
    if _ALL_REALS.fullmatch(folded):
        return Region(regions.EVERYTHING)
    if folded in ("dne", "does not exist", "doesn't exist", "do not exist"):
        return Text("DNE")
    if folded in ("infinity", "positive infinity"):
        return Infinity(1)
    if folded == "negative infinity":
        return Infinity(-1)
    if (value := worded(folded)) is not None:
        return value
    parts = [part for part in re.split(r"\s*[,;]\s*(?:and |or )?|\s+(?:and|or)\s+", words) if part]
    if len(parts) > 1 and re.search(r"\bor\b", folded):  # says less than "and"
        return Row("or", tuple(map(part_of, sorted(parts, key=str.casefold))), "")
    if len(parts) > 1:
        return Collection(tuple(map(part_of, parts)))
    if not words:
        raise Unreadable("no words")
    return Text(words)


def part_of(words: str) -> Answer:
    return worded(words.casefold()) or Text(words)


def worded(folded: str) -> Value | None:
    """ "seven", "minus twenty-one", "two thirds", "one hundred and five apples"; None for what is
    no number in words."""
    words = folded.replace("-", " ").split()
    is_negative = folded.startswith(("-", "minus ", "negative "))
    words = words[is_negative and words[0] in ("minus", "negative") :]
    for end in range(min(len(words), LONGEST_NUMBER), 0, -1):
        number = number_of(words[:end])
        if number is None:
            continue
        tree = ("number", Fraction(-number if is_negative else number))
        things = words[end:]
        if len(things) == 1 and (parts := PARTS.get(things[0].removesuffix("s"))):
            return Value(("number", tree[1] / parts))
        if things and not units.is_counted(" ".join(things), number == 1):
            return None
        names = [(units.name_of(word), Fraction(1)) for word in things if word not in _ARTICLES]
        return Value(tree, units.product(names), counted=bool(things))
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

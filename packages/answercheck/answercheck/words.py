"""Answers in words."""

import re
from fractions import Fraction

from answercheck import regions, units
from answercheck.kinds import Answer, Collection, Region, Row, Text, Value
from answercheck.tokens import INTRODUCTION, Unreadable
from answercheck.trees import number
from answercheck.vocabulary import NUMBER_WORDS

_NO_SOLUTION = re.compile(
    r"(there (is|are) )?no (solutions?|such \w+ exists?)( exists?)?|(the )?empty set|"
    r"no solutions? exists?"
)
_ALL_REALS = re.compile(r"(the )?(set of )?(all )?(the )?(real numbers|reals|real numbers x)")
_NAMED: dict[str, Answer] = {
    "infinity": Value(regions.PLUS_INFINITY),
    "positive infinity": Value(regions.PLUS_INFINITY),
    "negative infinity": Value(regions.MINUS_INFINITY),
    **dict.fromkeys(("dne", "does not exist", "doesn't exist", "do not exist"), Text("DNE")),
}
LONGEST_NUMBER = 20  # words
PARTS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fifth": 5, "eighth": 8, "ninth": 9}
PARTS |= {f"{word}th": NUMBER_WORDS[word] for word in ("four", "six", "seven", "ten", "hundred")}


def read_words(text: str) -> Answer:
    """Words alone: one text, or a list of texts."""
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
    if not parts:
        raise Unreadable("no words")
    if len(parts) == 1:
        return Text(words)
    is_either = re.search(r"\bor\b", folded) is not None  # says less than "and"
    parts = sorted(parts, key=str.casefold) if is_either else parts
    answers = tuple(worded(part.casefold()) or Text(part) for part in parts)
    return Row("or", answers) if is_either else Collection(answers)


def worded(folded: str) -> Value | None:
    """ "seven", "minus twenty-one", "two thirds", "one hundred and five apples"; None for what is
    no number in words."""
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
        if things and not units.is_counted(" ".join(things), size == 1):
            return None
        names = [
            (units.name_of(word), Fraction(1)) for word in things if word not in units.ARTICLES
        ]
        return Value(number(value), units.product(names), counted=bool(things))
    return None


def number_of(words: list[str]) -> int | None:
    """The whole number that these words are, all of them."""
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

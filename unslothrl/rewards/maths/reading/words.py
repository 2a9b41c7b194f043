"""Answers in words."""

import re

from unslothrl.rewards.maths import regions
from unslothrl.rewards.maths.errors import Unreadable
from unslothrl.rewards.maths.kinds import Answer, Collection, EmptySet, Infinity, Region, Row, Text
from unslothrl.rewards.maths.notation.tokens import Tokens

_NO_SOLUTION = re.compile(
    r"(there (is|are) )?no (solutions?|such \w+ exists?)( exists?)?|(the )?empty set|"
    r"no solutions? exists?"
)
_ALL_REALS = re.compile(r"(the )?(set of )?(all )?(the )?(real numbers|reals|real numbers x)")


def read_words(tokens: Tokens) -> Answer:
    """Words alone: one text, or a list of texts."""
    text = " ".join(token.value for token in tokens)
    words = " ".join(text.replace("( ", "(").replace(" )", ")").split()).strip(" .,;:!")
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
    parts = [part for part in re.split(r"\s*[,;]\s*(?:and |or )?|\s+(?:and|or)\s+", words) if part]
    if len(parts) > 1 and re.search(r"\bor\b", folded):  # says less than "and"
        return Row("or", tuple(Text(part) for part in sorted(parts, key=str.casefold)), "")
    if len(parts) > 1:
        return Collection(tuple(Text(part) for part in parts))
    if not words:
        raise Unreadable("no words")
    return Text(words)

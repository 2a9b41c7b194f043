"""Exact match of a short answer, as question answering scores it.

Case, punctuation, the articles a, an, the and the width of spaces do not count; any of several gold
answers is right. Source: the evaluation of SQuAD (Rajpurkar et al., arXiv 1606.05250). Unlike
there, signs that make another answer stay: docs/rewards.md lists them. An answer of which nothing
is left ("A", "?") is compared with its articles, or as it is, and never equal to an empty one.
"""

import re
import string

from unslothrl.data.formats import tagged
from unslothrl.rewards.reward import Reward

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_DASHES = str.maketrans(dict.fromkeys("−–—‐‑", "-"))
# Between operands: numbers, single letters, functions, brackets.
_BEFORE = r"(?:(?<=[\d)|!'])|(?<=\d[a-z])|(?<=\b[a-z])|(?<=\bpi))"
_AFTER = r"(?=-?\$?\.?\d|-?(?:[a-z]|pi|inf(?:inity)?)\b|-?[a-z]{0,6}\(|\|)"
_SPACED = re.compile(rf" ?(?:[<>]=?|!?=+) ?|{_BEFORE} ?[-+*/^] ?{_AFTER}")
_KEPT = re.compile(
    rf"(?<![\w)])[-~!]{_AFTER}"  # -5, -x, !x
    rf"|{_BEFORE}(?:[-+*/^]{_AFTER}|!(?!\w)|'(?!\w))"  # x-y, n!, f'
    r"|[<=>|]|!(?==)"
    r"|(?<=\de)[-+](?=\d)"  # 1e-5
    r"|(?<=\d)[^\w\s](?=\d)"  # 1.5, 3-0, 10:30, 1/2
    r"|(?<![\w.])\.(?=\d)"  # .5
    r"|(?<=\d)%"
    r"|(?<=[\w+#])[+#](?=[+#]*(?:\W|$))"  # C++, C#, A+
)
_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")


def exact_match(completion: str, *golds: str) -> float:
    answer = reduced(tagged(completion) or "")
    return float(answer != "" and answer in {reduced(gold) for gold in golds})


def reduced(text: str) -> str:
    """The text as it is compared; only that of an empty text is empty."""
    text = " ".join(text.lower().translate(_DASHES).split())
    text = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    text = re.sub(r"(?<=\d) %", "%", text)
    text = _SPACED.sub(lambda sign: sign[0].strip(), text)
    kept = {match.start() for match in _KEPT.finditer(text)}
    words = _PUNCTUATION.sub(lambda sign: sign[0] if sign.start() in kept else "", text)
    for candidate in (_ARTICLES.sub(" ", words), words, text):
        if candidate.split():
            return " ".join(candidate.split())
    return ""


REWARD = Reward(exact_match, needs_answer=True)

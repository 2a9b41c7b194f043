"""Exact match of a short answer, as question answering scores it.

Case, punctuation, the articles a, an, the and the width of spaces do not count; any of several gold
answers is right. Source: the evaluation of SQuAD (Rajpurkar et al., arXiv 1606.05250).
"""

import re
import string

from unslothrl.rewards.answers import tagged

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(completion: str, *answers: str) -> float:
    found = tagged(completion)
    return float(found is not None and reduced(found) in {reduced(one) for one in answers})


def reduced(text: str) -> str:
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())

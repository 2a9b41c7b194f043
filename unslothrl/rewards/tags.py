"""The think-and-answer rewards: a correct answer, its form, and its tags.

    accuracy  1     what stands between the last `<answer>` and the `</answer>` after it is right
    format    0.1   the completion opens with <think>...</think> and <answer>...</answer> follows
    tags      0.05  for each of the four tags that stands exactly once, less 0.001 a character after
                    `</answer>`; never below zero, so that a correct answer cannot be spoilt

Answers are compared as text after trimming, with the commas of thousands taken out ("1,000" is
"1000"; "1,2" is not "12").
"""

import re

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_THOUSANDS = re.compile(r"([-+]?\$?)(\d{1,3}(?:,\d{3})+)(\.\d+)?")


def normalise(answer: str) -> str:
    """The answer as it is compared: trimmed, "1,234" as "1234"."""
    answer = answer.strip()
    if _THOUSANDS.fullmatch(answer):
        return answer.replace(",", "")
    return answer


def extract_answer(completion: str) -> str | None:
    """What stands between the last `<answer>` and the `</answer>` after it; None without both."""
    _, opening, rest = completion.rpartition("<answer>")
    answer, closing, _ = rest.partition("</answer>")
    return answer.strip() if opening and closing else None


def accuracy(completion: str, answer: str) -> float:
    found = extract_answer(completion)
    return float(found is not None and normalise(found) == normalise(answer))


def think_answer_format(completion: str, answer: str) -> float:
    text = completion.lstrip()
    if not text.startswith("<think>"):
        return 0.0
    _, closed, rest = text.partition("</think>")
    rest = rest.lstrip()
    return 0.1 if closed and rest.startswith("<answer>") and "</answer>" in rest else 0.0


def tag_count(completion: str, answer: str) -> float:
    count = sum(completion.count(tag) == 1 for tag in TAGS)
    _, closed, trailing = completion.rpartition("</answer>")
    excess = len(trailing.strip("\n")) if closed else 0
    return max(0.0, 0.05 * count - 0.001 * excess)

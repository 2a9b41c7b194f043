"""The think-and-answer rewards: a correct answer, its form, and its tags.

    accuracy  1     what stands between the last `<answer>` and the `</answer>` after it is right
    format    0.1   the completion opens with <think>...</think> and <answer>...</answer> follows
    tags      0.05  for each of the four tags that stands exactly once, less 0.001 a character after
                    `</answer>`; never below zero, so that a correct answer cannot be spoilt

Answers are compared as text, see `answers`.
"""

from unslothrl.rewards.answers import normalise, tagged

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def accuracy(completion: str, answer: str) -> float:
    found = tagged(completion)
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

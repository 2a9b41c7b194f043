"""The think-and-answer rewards: a correct answer, its form, and its tags.

    accuracy  1     what stands between the last `<answer>` and the `</answer>` after it is right
    format    1     the completion opens with <think>...</think> and <answer>...</answer> follows
    tags      1/4   for each of the four tags that stands exactly once, less 1/200 a character after
                    `</answer>`; never below zero, so that a correct answer cannot be spoilt

Their usual weights are 1, 0.1 and 0.2. Answers are compared as text, see `answers`.
"""

from unslothrl.rewards.answers import normalise, tagged

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def accuracy(completion: str, *answers: str) -> float:
    """1 if the answer is one of `answers`, else 0."""
    found = tagged(completion)
    return float(found is not None and normalise(found) in map(normalise, answers))


def think_answer_format(completion: str) -> float:
    text = completion.lstrip()
    if not text.startswith("<think>"):
        return 0.0
    _, closed, rest = text.partition("</think>")
    rest = rest.lstrip()
    return float(bool(closed) and rest.startswith("<answer>") and "</answer>" in rest)


def tag_count(completion: str) -> float:
    count = sum(completion.count(tag) == 1 for tag in TAGS)
    _, closed, trailing = completion.rpartition("</answer>")
    excess = len(trailing.strip("\n")) if closed else 0
    return max(0.0, count / 4 - excess / 200)

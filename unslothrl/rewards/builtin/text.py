"""Rewards for the think-and-answer form and the answer in it, as text."""

from unslothrl.data.formats import TAGS, normalise, tagged
from unslothrl.rewards.reward import Reward


def accuracy(completion: str, *golds: str) -> float:
    """1 if the answer between the last `<answer>` and the `</answer>` after it is right, as
    `data.formats` compares texts. Any of several gold answers is right."""
    answer = tagged(completion)
    return float(answer is not None and normalise(answer) in map(normalise, golds))


def think_answer_format(completion: str) -> float:
    """1 if the completion is <think>...</think> and, at once, <answer>...</answer>."""
    text = completion.lstrip()
    if not text.startswith("<think>"):
        return 0.0
    _, closed, rest = text.partition("</think>")
    rest = rest.lstrip()
    return float(bool(closed) and rest.startswith("<answer>") and "</answer>" in rest)


def tag_count(completion: str) -> float:
    """A quarter for each tag of the form that stands exactly once. Less 1/200 a character after the
    last `</answer>`, but never below zero, so that a correct answer cannot be spoilt."""
    count = sum(completion.count(tag) == 1 for tag in TAGS)
    _, closed, trailing = completion.rpartition("</answer>")
    excess = len(trailing.strip("\n")) if closed else 0
    return max(0.0, count / 4 - excess / 200)


REWARDS = {
    "accuracy": Reward(accuracy, needs_answer=True),
    "format": Reward(think_answer_format, weight=0.1),
    "tags": Reward(tag_count, weight=0.2),
}

"""A quarter for each tag of the think-and-answer form that stands exactly once.

Less 1/200 a character after the last `</answer>`, but never below zero, so that a correct answer
cannot be spoilt.
"""

from unslothrl.data.answers import TAGS
from unslothrl.rewards.reward import Reward


def tag_count(completion: str) -> float:
    count = sum(completion.count(tag) == 1 for tag in TAGS)
    _, closed, trailing = completion.rpartition("</answer>")
    excess = len(trailing.strip("\n")) if closed else 0
    return max(0.0, count / 4 - excess / 200)


REWARD = Reward(tag_count, weight=0.2)

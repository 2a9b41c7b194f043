"""Rewards by name: functions of a completion's text and the gold answer."""

from collections.abc import Callable, Sequence

from unslothrl.rewards import tags

Reward = Callable[[str, str], float]

REWARDS: dict[str, Reward] = {
    "accuracy": tags.accuracy,
    "format": tags.think_answer_format,
    "tags": tags.tag_count,
}
SCORE = "accuracy"  # which of them is reported as correct


def score_completions(texts: Sequence[str], answer: str) -> dict[str, tuple[float, ...]]:
    """[candidates] texts -> every reward by name, [candidates]."""
    return {name: tuple(reward(text, answer) for text in texts) for name, reward in REWARDS.items()}

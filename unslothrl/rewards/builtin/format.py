"""1 if the completion opens with <think>...</think>, and <answer>...</answer> follows at once."""

from unslothrl.rewards.reward import Reward


def think_answer_format(completion: str) -> float:
    text = completion.lstrip()
    if not text.startswith("<think>"):
        return 0.0
    _, closed, rest = text.partition("</think>")
    rest = rest.lstrip()
    return float(bool(closed) and rest.startswith("<answer>") and "</answer>" in rest)


REWARD = Reward(think_answer_format, weight=0.1)

"""1 if the answer between the last `<answer>` and the `</answer>` after it is right, as text.

See `answers` for how texts are compared. Any of several gold answers is right.
"""

from unslothrl.data.answers import normalise, tagged
from unslothrl.rewards.reward import Reward


def accuracy(completion: str, *golds: str) -> float:
    answer = tagged(completion)
    return float(answer is not None and normalise(answer) in map(normalise, golds))


REWARD = Reward(accuracy, needs_answer=True)

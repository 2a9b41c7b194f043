"""1 if the answer in the last `\\boxed{}` is right by mathematics.

Where the gold answer is a list, several boxes may be one answer: then all boxes of the completion
count, so that further guesses make it wrong. Any of several gold answers is right.
"""

from answercheck import same, same_list
from unslothrl.data import answers
from unslothrl.rewards.reward import IN_PROCESS, Reward

PROMPT = "Reason step by step, and put your final answer within \\boxed{}."


def boxed(completion: str, *golds: str) -> float:
    boxes = answers.boxes(completion)
    if not boxes:
        return 0.0
    if any(same(boxes[-1], gold) for gold in golds):
        return 1.0
    return float(len(boxes) > 1 and any(same_list(boxes, gold) for gold in golds))


REWARD = Reward(boxed, needs_answer=True, prompt=PROMPT, answer=answers.boxed, runs=IN_PROCESS)

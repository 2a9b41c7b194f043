"""Rewards for an answer that is right by mathematics. Any of several gold answers is right."""

from answercheck import same, same_list
from unslothrl.data import formats
from unslothrl.data.formats import TAGS, tagged
from unslothrl.rewards.reward import IN_PROCESS, Reward

PROMPT = "Reason step by step, and put your final answer within \\boxed{}."


def boxed(completion: str, *golds: str) -> float:
    """1 if the answer in the last `\\boxed{}` is right. Where the gold answer is a list, several
    boxes may be one answer: then all boxes of the completion count, so that further guesses make it
    wrong."""
    boxes = formats.boxes(completion)
    if not boxes:
        return 0.0
    if any(same(boxes[-1], gold) for gold in golds):
        return 1.0
    return float(len(boxes) > 1 and any(same_list(boxes, gold) for gold in golds))


def think_answer_tags(completion: str, *golds: str) -> float:
    """1 if the completion has the think-and-answer form and its answer is right: that in the box
    where the answer has a single one."""
    answer, positions = tagged(completion), [completion.find(tag) for tag in TAGS]
    in_form = (  # each of the four tags stands once, in order, and nothing follows
        all(completion.count(tag) == 1 for tag in TAGS)
        and positions == sorted(positions)
        and completion.rstrip().endswith(TAGS[-1])
    )
    if not in_form or answer is None:
        return 0.0
    boxes = formats.boxes(answer) if "box" in answer else []
    answer = boxes[0] if len(boxes) == 1 else answer
    return float(any(same(answer, gold) for gold in golds))


REWARDS = {
    "boxed": Reward(boxed, needs_answer=True, prompt=PROMPT, answer=formats.boxed, runs=IN_PROCESS),
    "think_answer_tags": Reward(think_answer_tags, needs_answer=True, runs=IN_PROCESS),
}

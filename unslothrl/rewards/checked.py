"""Rewards that compare answers as mathematics. They run in processes that can be killed.

think_answer_tags  1 if the completion has the form (one `<think>`, `</think>`, `<answer>` and
                   `</answer>` each, in this order, nothing after the last) and its answer is right
boxed              1 if the answer in the last `\\boxed{}` is right, or if the gold answer is a list
                   and the completion has several boxes that together are this list

All boxes of the completion count for a list, so that further guesses make it wrong. Several gold
answers: any of them is right.
"""

from unslothrl.rewards import answers, maths
from unslothrl.rewards.tags import TAGS


def think_answer_tags(completion: str, *golds: str) -> float:
    found = answers.tagged(completion)
    in_form = has_form(completion)
    return float(in_form and found is not None and any(maths.same(found, gold) for gold in golds))


def has_form(completion: str) -> bool:
    """Whether each of the four tags stands once, in order, and nothing follows."""
    positions = [completion.find(tag) for tag in TAGS]
    return (
        all(completion.count(tag) == 1 for tag in TAGS)
        and positions == sorted(positions)
        and completion.rstrip().endswith(TAGS[-1])
    )


def boxed(completion: str, *golds: str) -> float:
    found = answers.boxes(completion)
    if not found:
        return 0.0
    if any(maths.same(found[-1], gold) for gold in golds):
        return 1.0
    return float(len(found) > 1 and any(maths.same_list(found, gold) for gold in golds))

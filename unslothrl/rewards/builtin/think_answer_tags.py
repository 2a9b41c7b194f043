"""1 if the completion has the think-and-answer form and its answer is right by mathematics.

The form: `<think>`, `</think>`, `<answer>` and `</answer>` once each, in this order, with nothing
after the last. Any of several gold answers is right.
"""

from answercheck import same
from unslothrl.data.answers import TAGS, tagged
from unslothrl.rewards.reward import IN_PROCESS, Reward


def think_answer_tags(completion: str, *golds: str) -> float:
    answer = tagged(completion)
    in_form = has_form(completion)
    return float(in_form and answer is not None and any(same(answer, gold) for gold in golds))


def has_form(completion: str) -> bool:
    """Whether each of the four tags stands once, in order, and nothing follows."""
    positions = [completion.find(tag) for tag in TAGS]
    return (
        all(completion.count(tag) == 1 for tag in TAGS)
        and positions == sorted(positions)
        and completion.rstrip().endswith(TAGS[-1])
    )


REWARD = Reward(think_answer_tags, needs_answer=True, runs=IN_PROCESS)

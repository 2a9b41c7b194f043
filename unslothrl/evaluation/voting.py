"""The answer that most completions of a problem give (Wang et al. 2022, self-consistency).

Answers are the same where their texts are; those to mathematical rewards also where mathematics
says so, in processes that are killed where that takes too long.
"""

import itertools
from collections.abc import Sequence

from unslothrl.data import answers
from unslothrl.rewards.processes import ProcessPool, RewardCall

SAME = "answercheck:same"
PROCESSES, AHEAD = 2, 16
DEADLINE_S = 2.0  # for two answers, else they differ

Read = Sequence[str | None]
"""The answers of a problem's completions; None: it gives none."""


def winners(read: Sequence[Read], is_maths: bool) -> list[int | None]:
    """Of each problem, the first completion that gives the answer which most give, of the earliest
    of several such; None where none gives one."""
    texts = [[None if text is None else answers.normalise(text) for text in each] for each in read]
    same = same_answers(texts) if is_maths else [frozenset()] * len(texts)
    return [winner(each, pairs) for each, pairs in zip(texts, same, strict=True)]


def winner(texts: Read, same: frozenset[tuple[str, str]]) -> int | None:
    """`same`: pairs of texts that are one answer, in the order in which they come first."""
    kinds: dict[str, list[int]] = {}  # by the first text of each
    for i, text in enumerate(texts):
        if text is not None:
            kind = next((k for k in kinds if k == text or (k, text) in same), text)
            kinds.setdefault(kind, []).append(i)
    return max(kinds.values(), key=len)[0] if kinds else None  # the first of several


def same_answers(texts: Sequence[Read]) -> list[frozenset[tuple[str, str]]]:
    """Of each problem, the pairs of different texts that are mathematically the same."""
    pairs = [
        (problem, *pair)
        for problem, each in enumerate(texts)
        for pair in itertools.combinations(dict.fromkeys(t for t in each if t is not None), 2)
    ]
    if not pairs:
        return [frozenset()] * len(texts)
    with ProcessPool(PROCESSES, DEADLINE_S) as pool:
        results = pool.call([RewardCall(SAME, pair[1:]) for pair in pairs], ahead=AHEAD)
    found: list[set[tuple[str, str]]] = [set() for _ in texts]
    for (problem, one, other), result in zip(pairs, results, strict=True):
        if result.value is True:
            found[problem].add((one, other))
    return [frozenset(each) for each in found]

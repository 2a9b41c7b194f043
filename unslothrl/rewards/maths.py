"""Whether two answers are mathematically the same, by math-verify.

Answers are wrapped in `\\boxed{}` before they are parsed: bare LaTeX often is not recognised. Text
that is equal after trimming needs no parser. Parsing may take for ever and may use any amount of
memory, so this runs in a process that can be killed (`workers`); math-verify's own timeouts use
SIGALRM, which does nothing outside of the main thread, and are off.
"""

import functools
import logging

from unslothrl.rewards.answers import normalise

LONGEST = 1000  # characters of an answer that is worth parsing


def same(answer: str, gold: str) -> bool:
    """Whether `answer` is `gold`, as text or as mathematics."""
    answer, gold = normalise(answer), normalise(gold)
    if answer == gold:
        return True
    if not answer or len(answer) > LONGEST:
        return False
    from math_verify import verify

    expected, found = parsed(gold), parse(answer)
    return bool(expected and found) and verify(expected, found, timeout_seconds=None)


@functools.lru_cache(maxsize=4096)
def parsed(gold: str) -> list:
    """Gold answers come again for every candidate of a group."""
    return parse(gold)


def parse(answer: str) -> list:
    from math_verify import parse

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns: no timeout is set
    return parse("\\boxed{" + answer + "}", parsing_timeout=None)

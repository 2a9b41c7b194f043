"""math-verify's judgement as it is used most, for bench/answers.py --peer."""

import logging


def same(answer: str, gold: str) -> bool:
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns: no timeout is set
    expected = parse("\\boxed{" + gold + "}", parsing_timeout=None)
    found = parse("\\boxed{" + answer + "}", parsing_timeout=None)
    return bool(expected and found) and verify(expected, found, timeout_seconds=None)

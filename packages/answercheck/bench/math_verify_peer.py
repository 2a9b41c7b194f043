r"""math-verify's judgement, for `measure.py --peer` and packages/answercheck/math-verify-report.md.

python bench/math_verify_peer.py '5=216' '\log_4 8 = \frac32'   # answer, gold: prints True or False
"""

import logging
import sys


def same(answer: str, gold: str) -> bool:
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns: no timeout is set
    expected = parse("\\boxed{" + gold + "}", parsing_timeout=None)
    found = parse("\\boxed{" + answer + "}", parsing_timeout=None)
    return bool(expected and found) and verify(expected, found, timeout_seconds=None)


if __name__ == "__main__":
    print(same(*sys.argv[1:]))

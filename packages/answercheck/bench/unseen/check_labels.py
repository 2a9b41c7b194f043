"""Reads every pair of the set with a parser of its own and prints those whose label it contradicts.

    python bench/unseen/check_labels.py

Also checks that no (gold, answer) occurs twice, so that none is both right and wrong.
"""

import collections
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from unseen import cases, regions


def by_rule(kind, label, gold, answer):
    """Pairs decided by a rule about notation rather than by value."""
    if kind.startswith(("percent", "numbers in", "text", "infinity")) or "|" in gold + answer:
        return True
    lone_letter = re.search("(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])", answer)
    return kind == "equations" and label == "wrong" and ("=" not in answer or not lone_letter)


def main():
    seen, read, contradicted = set(), collections.Counter(), 0
    for case in cases():
        kind, gold = case["kind"], case["gold"]
        for label, answer in ((x, one) for x in ("right", "wrong") for one in case[x]):
            assert (gold, answer) not in seen, (gold, answer)
            seen.add((gold, answer))
            same = None if by_rule(kind, label, gold, answer) else regions.same(gold, answer)
            read[kind, same is not None] += 1
            if same is not None and same != (label == "right"):
                contradicted += 1
                print(" | ".join((kind, label, gold, answer)))
    for kind in sorted({kind for kind, _ in read}):
        print(f"{kind}: {read[kind, True]} read, {read[kind, False]} not")
    print(f"{contradicted} labels contradicted")


if __name__ == "__main__":
    main()

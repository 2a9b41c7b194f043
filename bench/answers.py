"""How often the mathematics reward refuses a right answer or accepts a wrong one.

    python bench/answers.py                              # the answers written and made here
    python bench/answers.py --also more.jsonl ...        # and others
    python bench/answers.py --only more.jsonl --out /tmp/more.json

A file has a JSON object a line: {"kind", "gold", "right": [...], "wrong": [...]}. Prints counts for
each kind and names every failure; writes bench/results/answers-cpu.json, or --out. An answer that
misses its deadline is refused, as in a run. `--peer` asks math-verify instead, `--unseen` measures
only the set that was made without knowledge of the reward (answers_unseen, needs SymPy).
"""

import argparse
import collections
import json
import time
from collections.abc import Iterable
from pathlib import Path

import answers_made
import answers_unseen
from facts import facts

from unslothrl.rewards.processes import ProcessPool, RewardCall

HERE = Path(__file__).parent
WRITTEN = HERE / "answers" / "written.jsonl"
SAME = "unslothrl.rewards.maths:same"
PEER = "answers_peer:same"


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def pairs(cases: Iterable[dict]) -> list[tuple[str, str, str, bool]]:
    """(kind, gold, answer, whether it is right)"""
    return [
        (case["kind"], case["gold"], answer, right)
        for case in cases
        for right in (True, False)
        for answer in dict.fromkeys(case["right" if right else "wrong"])
    ]


def measure(cases: list[dict], function: str) -> dict:
    """Counts and failures of `function`, "module:name", over every answer of the cases."""
    judged = pairs(cases)
    started = time.perf_counter()
    with ProcessPool(2) as pool:
        results = pool.call([RewardCall(function, (answer, gold)) for _, gold, answer, _ in judged])
    seconds = time.perf_counter() - started
    kinds: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    failures = []
    for case in cases:
        kinds[case["kind"]]["golds"] += 1
    for (kind, gold, answer, right), verdict in zip(judged, results, strict=True):
        accepted = verdict.value is True
        kinds[kind]["right" if right else "wrong"] += 1
        if accepted != right:
            failure = "refused right" if right else "accepted wrong"
            kinds[kind][failure] += 1
            failures.append([failure, kind, gold, answer, *([verdict.error] * bool(verdict.error))])
        elif verdict.error is not None:
            kinds[kind]["deadline or error"] += 1
    total = sum(kinds.values(), collections.Counter())
    return {
        "golds": total["golds"],
        "right answers": total["right"],
        "wrong answers": total["wrong"],
        "refused right": total["refused right"],
        "accepted wrong": total["accepted wrong"],
        "refused right, percent": round(100 * total["refused right"] / max(1, total["right"]), 4),
        "accepted wrong, percent": round(100 * total["accepted wrong"] / max(1, total["wrong"]), 4),
        "answers a second": round(len(judged) / seconds),
        "kinds": {kind: dict(counts) for kind, counts in sorted(kinds.items())},
        "failures": failures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="files, JSONL")
    parser.add_argument("--only", type=Path, nargs="*", default=[], help="files, JSONL")
    parser.add_argument("--unseen", action="store_true", help="measure answers_unseen alone")
    parser.add_argument("--math", type=Path, help="MATH-500, JSONL: its golds, perturbed")
    parser.add_argument("--peer", action="store_true", help="measure math-verify 0.9")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "answers-cpu.json")
    given = parser.parse_args()
    cases = [case for path in (*given.only, *given.also) for case in read(path)]
    if given.unseen:
        cases += answers_unseen.cases()
    elif not given.only:
        cases += [*read(WRITTEN), *answers_made.cases(), *answers_unseen.cases()]
    if given.math:
        golds = [row["answer"] for row in read(given.math)]
        cases += answers_made.published(golds)
    result = measure(cases, PEER if given.peer else SAME)
    for failure in result["failures"]:
        print(" | ".join(failure))
    for kind, counts in result["kinds"].items():
        print(f"{kind}: {counts}")
    print({name: value for name, value in result.items() if name not in ("kinds", "failures")})
    versions = facts(("math-verify",) if given.peer else ("mpmath",))
    given.out.write_text(json.dumps({**versions, **result}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

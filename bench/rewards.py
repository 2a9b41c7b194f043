"""How many completions a second the rewards check, and how many programs a second the sandbox runs.

    python bench/rewards.py --gsm8k gsm8k/test.jsonl --math math500/test.jsonl

Completions are made from gold answers: half of them right, half with the last character changed,
processes warm. Writes bench/results/rewards-cpu.json, or --out.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from facts import facts

from unslothrl import rewards, sandbox
from unslothrl.data import formats, sources
from unslothrl.data.rendering import numbered
from unslothrl.rewards.processes import ProcessPool, RewardCall
from unslothrl.rewards.scorer import Scorable, Scorer
from unslothrl.types import Completion, Task

RESULTS = Path(__file__).parent / "results"
REPEATS = 5
PROGRAMS = 200


def completions(path: str, form: str) -> list[Scorable]:
    """A completion for every gold answer of a file, `form % answer`; every second one is wrong."""
    splits = sources.load_splits(sources.parse(path))
    made = []
    for number, row in numbered(splits[sources.train_of(splits)]):
        gold = formats.read(row).answer
        answer = gold if number % 2 else gold[:-1] + ("1" if gold[-1:] != "1" else "2")
        made.append((Task("", "", gold, "", ()), Completion.of_text(form % answer)))
    return made


def maths(path: str, reward: str) -> dict[str, float]:
    """How fast `reward` checks the completions of a file, in completions a second."""
    form = r"So \boxed{%s}." if reward == "boxed" else "<think>so</think><answer>%s</answer>"
    made = completions(path, form)
    scorer = Scorer(rewards.choose((reward,)))
    rates = []
    try:
        scorer.score(made[:200])
        for _ in range(REPEATS):
            started = time.perf_counter()
            scored = scorer.score(made)
            rates.append(len(made) / (time.perf_counter() - started))
    finally:
        scorer.close()
    assert not scored.failures
    return {
        "completions": len(made),
        "a second, median": round(statistics.median(rates)),
        "a second, least": round(min(rates)),
        "right": sum(scored.scores),
    }


def programs(level: str, pool: ProcessPool) -> float:
    """Programs a second, each printing a number."""
    call = RewardCall("rewards_programs:run_one", (level,), deadline_s=60)
    pool.call([call] * 8)
    started = time.perf_counter()
    results = pool.call([call] * PROGRAMS)
    seconds = time.perf_counter() - started
    assert all(result.value == "1\n" for result in results), results[0]
    return round(PROGRAMS / seconds, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gsm8k", required=True, help="GSM8K, JSONL")
    parser.add_argument("--math", help="MATH-500, JSONL")
    parser.add_argument("--out", type=Path, default=RESULTS / "rewards-cpu.json")
    given = parser.parse_args()
    result: dict[str, object] = facts(("mpmath",))
    for name, path in (("GSM8K", given.gsm8k), ("MATH-500", given.math)):
        for reward in ("boxed", "think_answer_tags") if path else ():
            result[f"{reward}, {name}"] = maths(path, reward)
            print(f"{reward}, {name}: {result[f'{reward}, {name}']}", flush=True)
    with ProcessPool(2) as pool:  # they see this folder, and with it rewards_programs
        for level in sandbox.LEVELS:
            if sandbox.available(level) is None:
                rates = [programs(level, pool) for _ in range(REPEATS)]
                result[f"programs a second, {level}"] = statistics.median(rates)
                print(f"{level}: {rates} programs a second", flush=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

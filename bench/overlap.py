"""What overlap gains: trained tokens a second with --max_staleness over synchronous training.

    python bench/overlap.py --simulated                   # resumable: finished runs are kept
    python bench/overlap.py --simulated --only "equal, staleness 1"
    python bench/overlap.py --simulated --rehearse        # every case for two short steps

The real trainer, actors and Ray processes over engines and learners without a model, whose delays
are sleeps (bench/simulated/): a step of 16 prompts x 8 completions on 2 actors. Generation takes
2 s where all completions have 200 tokens; "long tail" are log-normal lengths (median 120, sigma
0.8, at most 400 tokens), with which a synchronous step waits 4 s for the longest while the mean
keeps an engine busy for 1.7 s. Speed counts trained tokens from the first prompt on, the filling of
the pipeline included. Writes bench/results/overlap-simulated-cpu.json.
"""

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cases import flags, measure, report
from simulated.builders import TEXT_PER_TOKEN, Simulation
from simulated.engine import EngineDelays, Lengths
from simulated.learner import LearnerDelays
from simulated.run import Done, train

ACTORS, PROMPTS, CANDIDATES, STEP_S = 2, 16, 8, 0.01
CONSTANT = Lengths(200)  # 2 s of steps
LONG_TAIL = Lengths(120, 0.8)
LONGEST = 400


@dataclass(frozen=True)
class Case:
    """A run: its lengths, the seconds of an update, and how stale its rollouts may be."""

    kind: str
    lengths: Lengths
    update_s: float
    staleness: int
    steps: int

    @property
    def name(self) -> str:
        return f"{self.kind}, staleness {self.staleness}"


KINDS = {  # name -> (lengths, seconds of an update, steps, half as many where synchronous)
    "equal": (CONSTANT, 2.0, 40),
    "generation half of the update": (CONSTANT, 4.0, 20),
    "generation twice the update": (CONSTANT, 1.0, 24),
    "long tail, update as long as the longest": (LONG_TAIL, 4.0, 20),
    "long tail, update as long as the mean": (LONG_TAIL, 1.7, 24),
}
CASES = [
    Case(kind, lengths, update_s, staleness, steps if staleness else steps // 2)
    for kind, (lengths, update_s, steps) in KINDS.items()
    for staleness in (0, 1, 2)
]


def run(case: Case, folder: Path, rehearse: bool) -> dict:
    """-> the figures of a case."""
    scale = 0.05 if rehearse else 1.0
    simulation = Simulation(
        EngineDelays(STEP_S * scale),
        LearnerDelays(case.update_s * scale),
        case.lengths,
        max_running=PROMPTS * CANDIDATES // ACTORS,
    )
    options = {
        "number_of_actors": ACTORS,
        "batch_size": PROMPTS,
        "num_candidates": CANDIDATES,
        "topk": CANDIDATES,
        "max_new_tokens": LONGEST,
        "max_prompt_tokens": 64,
        "max_num_seqs": PROMPTS * CANDIDATES // ACTORS,
        "max_staleness": case.staleness,
    }
    return figures(train(simulation, options, 2 if rehearse else case.steps, folder))


def figures(done: Done) -> dict:
    """What is said of a run."""
    staleness = [row["rollout/staleness"] for row in done.metrics if "rollout/staleness" in row]
    lengths = [tokens // TEXT_PER_TOKEN for tokens in done.characters]
    return {
        "trained tokens": done.trained["tokens"],
        "seconds": round(done.seconds, 2),
        "trained tokens a second": round(done.tokens_per_s, 1),
        "seconds a step, median": round(statistics.median(done.steps), 3),
        "seconds of the first step": round(done.steps[0], 3),
        "largest staleness": max(staleness, default=0),
        "completions": len(done.consumed),
        "consumed more than once": sum(times > 1 for times in done.consumed.values()),
        "lengths": lengths,
        "notes": done.notes,
    }


def quantiles(lengths: Sequence[int]) -> list[int]:
    """The 5th, 25th, 50th, 75th and 95th percentile."""
    cut = statistics.quantiles(lengths, n=20)
    return [round(cut[i]) for i in (0, 4, 9, 14, 18)]


def distance(a: Sequence[int], b: Sequence[int]) -> dict[str, object]:
    """Two-sample Kolmogorov-Smirnov test at 0.1%."""
    first, second = sorted(a), sorted(b)
    found = max(
        abs(bisect_right(first, x) / len(first) - bisect_right(second, x) / len(second))
        for x in {*first, *second}
    )
    allowed = 1.949 * ((len(first) + len(second)) / (len(first) * len(second))) ** 0.5
    return {
        "largest distance": round(found, 4),
        "allowed": round(allowed, 4),
        "one distribution": found <= allowed,
    }


def summary(runs: dict[str, dict]) -> dict[str, dict]:
    """By kind: what each staleness gains over synchronous training, for the runs that there are."""
    summed: dict[str, dict] = {}
    for case in CASES:
        alone = runs.get(f"{case.kind}, staleness 0")
        here = runs.get(case.name)
        if not case.staleness or alone is None or here is None:
            continue
        ratio = here["trained tokens a second"] / alone["trained tokens a second"]
        of_case = {
            "over synchronous": round(ratio, 3),
            "largest staleness": here["largest staleness"],
            "lengths trained on against synchronous": distance(here["lengths"], alone["lengths"]),
        }
        if case.lengths.sigma == 0:
            longest = max(case.lengths.median * STEP_S, case.update_s)
            median = here["seconds a step, median"]
            of_case["median step over max(generation, update)"] = round(median / longest, 3)
        summed[case.name] = of_case
    return summed


def main() -> None:
    parser = flags(__doc__, "bench-overlap")
    parser.add_argument("--simulated", action="store_true", help="engines without a model")
    given = parser.parse_args()
    runs = measure(given, CASES, run)
    gain = summary(runs)
    for of_run in runs.values():
        of_run["lengths, 5 25 50 75 95%"] = quantiles(of_run.pop("lengths"))
    command = "python bench/overlap.py --simulated"
    report(given, "overlap-simulated", command, CASES, {"gain": gain}, runs, ("ray", "numpy"))


if __name__ == "__main__":
    main()

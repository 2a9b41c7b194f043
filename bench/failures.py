"""What dying actors cost: trained tokens a second of a run with killed actors over a quiet one.

    python bench/failures.py                     # resumable: finished runs are kept
    python bench/failures.py --only "killed, staleness 1"
    python bench/failures.py --rehearse          # one kill in four short steps; writes nothing

The real trainer, supervision and Ray processes over engines and a learner without a model, whose
delays are sleeps (bench/simulated/). 8 actors; a step of 32 prompts x 8 completions of log-normal
lengths takes about 3 s, and so does an update; an engine takes three steps' time to start, beside
what its process takes. In a tenth of the steps a random actor gets SIGKILL at a random moment. Each
prompt of the run must be consumed exactly once, counted from the run folder. Writes
bench/results/failures-simulated-cpu.json.
"""

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from facts import commit, facts, result_file
from simulated.builders import Simulation
from simulated.engine import EngineDelays, Lengths
from simulated.learner import LearnerDelays
from simulated.run import train

ROOT = Path(__file__).parents[1]
ACTORS, PROMPTS, CANDIDATES, STEPS = 8, 32, 8, 40
FAILING = 0.1  # of the steps
STEP_S = 3.0
LENGTHS, LONGEST = Lengths(120, 0.6), 300
TOKEN_S = STEP_S / LONGEST  # a synchronous step waits for a completion of the longest


@dataclass(frozen=True)
class Case:
    name: str
    is_killed: bool
    staleness: int

    @property
    def steps(self) -> int:
        """Half as many where a step's two phases follow one another."""
        return STEPS if self.staleness else STEPS // 2


CASES = [
    Case(f"{name}, staleness {staleness}", is_killed, staleness)
    for staleness in (1, 0)
    for name, is_killed in (("quiet", False), ("killed", True))
]


@dataclass
class Killer:
    """Sends SIGKILL to a random actor in each of some steps."""

    processes: Path  # see `Simulation.processes`
    steps: frozenset[int]
    step_s: float
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    killed: list[dict] = field(default_factory=list)
    timers: list[threading.Timer] = field(default_factory=list)

    def after(self, step: int) -> None:
        """Called when a step has ended: the next one may be one of those."""
        if step + 1 in self.steps:
            delay = self.draw.uniform(0, self.step_s)
            self.timers.append(threading.Timer(delay, self.kill, (step + 1,)))
            self.timers[-1].start()

    def kill(self, step: int) -> None:
        started = sorted(self.processes.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        newest = {file.stem: int(file.suffix[1:]) for file in started}
        name, pid = self.draw.choice(sorted(newest.items()))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # killed before, and not replaced yet
            self.killed.append({"step": step, "actor": name, "was dead": True})
            return
        self.killed.append({"step": step, "actor": name, "was dead": False})

    def wait(self) -> None:
        for timer in self.timers:
            timer.join()


def run(case: Case, rehearse: bool) -> dict:
    """-> the figures of a case."""
    steps, scale = (4, 0.1) if rehearse else (case.steps, 1.0)
    step_s = STEP_S * scale
    with tempfile.TemporaryDirectory() as folder:
        processes = Path(folder) / "processes"
        processes.mkdir()
        simulation = Simulation(
            EngineDelays(TOKEN_S * scale, start_s=3 * step_s),
            LearnerDelays(step_s),
            LENGTHS,
            max_running=PROMPTS * CANDIDATES // ACTORS,
            processes=processes,
        )
        chosen = random.Random(1).sample(range(2, steps), max(1, round(FAILING * steps)))
        killer = Killer(processes, frozenset(chosen if case.is_killed else ()), step_s)
        flags = {
            "number_of_actors": ACTORS,
            "batch_size": PROMPTS,
            "num_candidates": CANDIDATES,
            "topk": CANDIDATES,
            "max_new_tokens": LONGEST,
            "max_prompt_tokens": 64,
            "max_num_seqs": PROMPTS * CANDIDATES // ACTORS,
            "max_staleness": case.staleness,
        }
        load = os.getloadavg()[0]
        began = time.perf_counter()
        done = train(simulation, flags, steps, Path(folder), killer.after)
        wall = time.perf_counter() - began
        killer.wait()
    times = [done.consumed[str(prompt), i] for prompt in range(PROMPTS * steps)
             for i in range(CANDIDATES)]  # fmt: skip
    return {
        "trained tokens": done.trained["tokens"],
        "seconds": round(done.seconds, 2),
        "seconds with start and end": round(wall, 1),
        "trained tokens a second": round(done.tokens_per_s, 1),
        "seconds a step, median": round(statistics.median(done.steps), 3),
        "seconds a step, longest": round(max(done.steps), 3),
        "steps": len(done.steps),
        "killed": killer.killed,
        "prompts drawn": done.drawn,
        "completions consumed": sum(done.consumed.values()),
        "of the first prompts, completions consumed 0, 1, more times": [
            times.count(0), times.count(1), sum(n > 1 for n in times),
        ],
        "consumed more than once": sum(n > 1 for n in done.consumed.values()),
        "notes": done.notes,
        "commit": commit(),
        "load average": [round(load, 2), round(os.getloadavg()[0], 2)],
    }  # fmt: skip


def summary(runs: dict[str, dict]) -> dict[str, dict]:
    """By staleness: the killed run's speed over the quiet one's."""
    summed = {}
    for staleness in sorted({case.staleness for case in CASES}):
        quiet = runs.get(f"quiet, staleness {staleness}")
        killed = runs.get(f"killed, staleness {staleness}")
        if quiet is None or killed is None:
            continue
        ratio = killed["trained tokens a second"] / quiet["trained tokens a second"]
        died = [kill for kill in killed["killed"] if not kill["was dead"]]
        lost = killed["seconds"] - quiet["seconds"]
        summed[f"staleness {staleness}"] = {
            "killed over quiet": round(ratio, 3),
            "failures": len(died),
            "seconds lost per failure": round(lost / max(1, len(died)), 2),
            "every prompt once": all(
                each["of the first prompts, completions consumed 0, 1, more times"][::2] == [0, 0]
                and each["consumed more than once"] == 0
                for each in (quiet, killed)
            ),
        }
    return summed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rehearse", action="store_true", help="short steps; writes nothing")
    parser.add_argument("--only", metavar="CASE", help="this case alone")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench-failures")
    given = parser.parse_args()
    runs: dict[str, dict] = {}
    for case in CASES:
        kept = given.output / f"{case.name}.json"
        is_wanted = given.only in (None, case.name)
        if given.rehearse:
            if is_wanted:
                runs[case.name] = run(case, rehearse=True)
            continue
        if not kept.exists() and is_wanted:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(run(case, rehearse=False)))
        if kept.exists():
            runs[case.name] = json.loads(kept.read_text())
            print(case.name, runs[case.name]["trained tokens a second"], flush=True)
    result = {
        "command": "python bench/failures.py",
        **facts(("ray", "numpy")),
        "cases": {case.name: asdict(case) for case in CASES},
        "step_s": STEP_S,
        "start_s": 3 * STEP_S,
        "outcome": summary(runs),
        "runs": runs,
    }
    print(json.dumps(runs if given.rehearse else result["outcome"], indent=1))
    if not given.rehearse:
        result_file("failures-simulated").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

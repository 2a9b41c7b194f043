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

import os
import random
import signal
import statistics
import threading
from dataclasses import dataclass, field
from pathlib import Path

from cases import flags, measure, report
from simulated.builders import Simulation
from simulated.engine import EngineDelays, Lengths
from simulated.learner import LearnerDelays
from simulated.run import train

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


def run(case: Case, folder: Path, rehearse: bool) -> dict:
    """-> the figures of a case."""
    steps, scale = (4, 0.1) if rehearse else (case.steps, 1.0)
    step_s = STEP_S * scale
    processes = folder / "processes"
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
    done = train(simulation, options, steps, folder, killer.after)
    killer.wait()
    times = [done.consumed[str(prompt), i] for prompt in range(PROMPTS * steps)
             for i in range(CANDIDATES)]  # fmt: skip
    return {
        "trained tokens": done.trained["tokens"],
        "seconds": round(done.seconds, 2),
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
    given = flags(__doc__, "bench-failures").parse_args()
    runs = measure(given, CASES, run)
    summed = {"step_s": STEP_S, "start_s": 3 * STEP_S, "outcome": summary(runs)}
    packages = ("ray", "numpy")
    report(given, "failures-simulated", "python bench/failures.py", CASES, summed, runs, packages)


if __name__ == "__main__":
    main()

"""What the driver does as actors are added: its CPU time, and the bytes that pass the object store.

    python bench/scale.py                      # resumable: finished runs are kept
    python bench/scale.py --only "512 actors"
    python bench/scale.py --only "512 actors" --profile   # prints where the driver's time goes
    python bench/scale.py --rehearse           # at most 8 actors in 2 processes; writes nothing

The real trainer, stream and Ray, with --max_staleness 2, over simulated actors that share at most 8
Ray processes (bench/simulated/many.py). An actor draws two groups of 16 candidates of 500 to 1,000
tokens at a time, in 5.12 s, so that 512 actors finish 200 groups a second; a step trains on two
groups of each actor. The driver's CPU time is that of its process alone, all threads, over the
steps after the first four. From these constants follows what any number of actors takes, and
where the driver saturates. Writes bench/results/scale-simulated-cpu.json.
"""

import cProfile
import json
import pickle
import pstats
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from cases import flags, measure, report
from simulated.learner import LearnerDelays, SimulatedLearner
from simulated.many import GroupActor, ManyActors, SharedCluster
from simulated.run import builders, problem, train

from unslothrl import embedded
from unslothrl.config.options import Config
from unslothrl.planning.machine import Machine
from unslothrl.training import credit
from unslothrl.types import Assignment, Batch, Sampling

CANDIDATES, SHORTEST, LONGEST = 16, 500, 1000
GROUP_S = 5.12  # that an actor draws groups in
AT_ONCE = 2  # groups of an actor
UPDATE = 0.1  # of the time of a group: with what the driver does, updates take less than drawing
STALENESS = 2  # so that no step waits for what has just been drawn
WARM_UP = 4  # steps
PROCESSES = 8  # that the actors share
ADAPTER, ADAPTER_BYTES = "the adapter", 20 << 20
HOSTS_RAM_MB = 2**22  # so that the plan does not refuse 512 actors, none of which holds a model
CONSTANTS = ("driver, share of one core", "for each actor", "for each group a second")
TABLE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Case:
    """`actors` of which each draws `AT_ONCE` groups in `group_s`."""

    name: str
    actors: int
    group_s: float = GROUP_S
    steps: int = 16

    @property
    def rate(self) -> float:
        """Groups a second."""
        return AT_ONCE * self.actors / self.group_s


CASES = [
    Case("1 actor", 1),
    Case("8 actors", 8),
    Case("64 actors", 64),
    Case("64 actors, 100 groups a second", 64, 1.28, steps=40),
    Case("256 actors", 256),
    Case("512 actors", 512),
]


@dataclass
class Meter:
    """CPU seconds of the driver and of all that it has started, at the end of every step."""

    at: list[float] = field(default_factory=list)
    driver: list[float] = field(default_factory=list)
    others: list[dict[str, float]] = field(default_factory=list)

    def __call__(self, step: int) -> None:
        self.at.append(time.perf_counter())
        self.driver.append(seconds(psutil.Process()))
        spent: dict[str, float] = {}
        for process in psutil.Process().children(recursive=True):
            try:
                kind = kind_of(process.name(), process.cmdline())
                spent[kind] = spent.get(kind, 0.0) + seconds(process)
            except psutil.Error:
                continue
        self.others.append(spent)

    def shares(self) -> dict[str, float]:
        """Of one core, after the warm-up."""
        wall = self.at[-1] - self.at[WARM_UP - 1]
        first, last = self.others[WARM_UP - 1], self.others[-1]
        return {
            "driver": round((self.driver[-1] - self.driver[WARM_UP - 1]) / wall, 4),
            **{kind: round((last[kind] - first.get(kind, 0.0)) / wall, 4) for kind in last},
        }


def seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def kind_of(name: str, command: Sequence[str]) -> str:
    text = " ".join([name, *command])
    for kind in ("raylet", "gcs_server", "SharedHost", "ray::Host"):
        if kind in text:
            return {"SharedHost": "actors' processes", "ray::Host": "learner"}.get(kind, kind)
    return "other Ray processes"


def run(case: Case, folder: Path, rehearse: bool, profile: bool = False) -> dict:
    """-> the figures of a case."""
    if rehearse:
        case = Case("rehearsal", min(8, case.actors), 0.4, steps=WARM_UP + 2)
    simulation = ManyActors(
        case.group_s,
        at_once=AT_ONCE,
        shortest=SHORTEST,
        longest=LONGEST,
        learner=LearnerDelays(UPDATE * case.group_s),
        adapter_bytes=ADAPTER_BYTES,
    )
    options = {
        "number_of_actors": case.actors,
        "batch_size": AT_ONCE * case.actors,
        "num_candidates": CANDIDATES,
        "topk": CANDIDATES,
        "max_new_tokens": LONGEST,
        "max_prompt_tokens": 64,
        "max_staleness": STALENESS,
    }
    SharedCluster.PROCESSES = min(2 if rehearse else PROCESSES, case.actors)
    meter, profiler = Meter(), cProfile.Profile()

    def after(step: int) -> None:
        meter(step)
        if profile and step == WARM_UP:
            profiler.enable()
        elif step == case.steps:
            profiler.disable()

    def start(config: Config) -> SharedCluster:
        machine = replace(Machine.detect(), ram_mb=HOSTS_RAM_MB)
        made = builders(simulation)
        return SharedCluster(config, embedded.BASE, machine, lambda line: None, made)

    done = train(simulation, options, case.steps, folder, after, start)
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
        pstats.Stats(profiler).sort_stats("cumtime").print_stats(45)
    wall = meter.at[-1] - meter.at[WARM_UP - 1]
    groups = (case.steps - WARM_UP) * AT_ONCE * case.actors
    return {
        "actors": case.actors,
        "Ray processes of actors": SharedCluster.PROCESSES,
        "groups a second, asked for": round(case.rate, 2),
        "groups a second": round(groups / wall, 2),
        "seconds a step": round(wall / (case.steps - WARM_UP), 3),
        "share of one core": meter.shares(),
        "driver ms a group": round(
            1e3 * (meter.driver[-1] - meter.driver[WARM_UP - 1]) / groups, 3
        ),
        "largest staleness": max(row.get("rollout/staleness", 0) for row in done.metrics),
        "completions consumed": sum(done.consumed.values()),
        "consumed more than once": sum(n > 1 for n in done.consumed.values()),
    }


def sizes() -> dict[str, int]:
    """Bytes of what travels, pickled as Ray does."""
    simulation = ManyActors(0.0, 1, SHORTEST, LONGEST, LearnerDelays(0.0), ADAPTER_BYTES)
    actor = GroupActor("actor-0", simulation)
    sampling = Sampling(1.0, 1.0, 0, LONGEST)
    assignments = [Assignment(i, problem(i), CANDIDATES, sampling, (0, 1)) for i in range(16)]
    actor.submit(assignments)
    groups = [group for _, group in actor.collect().groups]
    samples = [
        sample
        for of_group in credit.samples_of(groups)
        for episode in of_group
        for sample in episode
    ]
    batch = Batch(tuple(samples), len(samples), sum(sample.tokens for sample in samples))
    update = SimulatedLearner(actor, simulation.learner, 0).update(batch, {})
    return {
        "a prompt": len(pickle.dumps(assignments, 5)) // 16,
        "a group": len(pickle.dumps(groups, 5)) // 16,
        "a group's samples": len(pickle.dumps(batch, 5)) // 16,
        "a group's part of an update's answer": len(pickle.dumps(update, 5)) // 16,
        ADAPTER: ADAPTER_BYTES,
    }


def table(runs: Sequence[dict], size: dict[str, int]) -> dict:
    """What follows for any number of actors. The driver's share of a core is fitted as
    a + b * actors + c * groups a second, each at least 0."""
    rows = [[1.0, run["actors"], run["groups a second"]] for run in runs]
    shares = [run["share of one core"]["driver"] for run in runs]
    a, b, c = fitted(np.array(rows), np.array(shares))
    listed = []
    for actors in TABLE:
        rate = AT_ONCE * actors / GROUP_S
        group = sum(bytes for name, bytes in size.items() if name != ADAPTER)
        through = AT_ONCE * actors * group + size[ADAPTER]
        measured = [
            share
            for share, run in zip(shares, runs, strict=True)
            if run["actors"] == actors and 0.9 < run["groups a second"] / rate < 1.1
        ]
        listed.append(
            {
                "actors": actors,
                "groups a second": round(rate, 2),
                "MB a step": round(through / 1e6, 1),
                "MB a second through the object store": round(through / GROUP_S / 1e6, 1),
                "driver, share of one core": round(a + b * actors + c * rate, 3),
                "as measured": measured[0] if measured else None,
            }
        )
    most = (1 - a) / (b + c * AT_ONCE / GROUP_S) if b + c else float("inf")
    return {
        "constants": dict(zip(CONSTANTS, (round(x, 6) for x in (a, b, c)), strict=True)),
        "rows": listed,
        "the driver saturates at": {
            "actors": round(most),
            "groups a second": round(AT_ONCE * most / GROUP_S),
        },
    }


def fitted(rows: np.ndarray, values: np.ndarray) -> list[float]:
    """Least squares with no coefficient under 0: one that would be is left out."""
    used = list(range(rows.shape[1]))
    while True:
        found = np.linalg.lstsq(rows[:, used], values, rcond=None)[0]
        if (found >= 0).all() or len(used) == 1:
            break
        del used[int(found.argmin())]
    result = [0.0] * rows.shape[1]
    for place, value in zip(used, found, strict=True):
        result[place] = float(value)
    return result


def main() -> None:
    parser = flags(__doc__, "bench-scale")
    parser.add_argument("--profile", action="store_true", help="print a profile of the driver")
    given = parser.parse_args()
    runs = measure(given, CASES, partial(run, profile=given.profile), keep=not given.profile)
    if given.profile:
        print(json.dumps(runs, indent=1))
        return
    summed: dict[str, dict] = {"bytes": sizes()}
    if len(runs) >= len(CONSTANTS):
        summed["table"] = table(list(runs.values()), summed["bytes"])
    packages = ("ray", "numpy")
    report(given, "scale-simulated", "python bench/scale.py", CASES, summed, runs, packages)


if __name__ == "__main__":
    main()

"""What overlap gains with real engines, and what it costs in reward.

    python bench/overlap_real.py                     # resumable: finished runs are kept
    python bench/overlap_real.py --only "speed, staleness 1"
    python bench/overlap_real.py --rehearse          # two small steps each; writes nothing

The embedded base, a transformers engine and a PEFT learner under Ray. Speed: a step of 64 prompts x
8 completions, the actor and the learner pinned to a core each, with one thread each; every group
has a signal, so that generation and update take about as long. Beside it, synchronous training
whose processes use both cores. Trained tokens a second, from the end of the second step on. Reward:
held-out pass@1 after 24 steps of 32 prompts, pinned, for three seeds. The lengths that were trained
on are compared with all that the engine has drawn. Writes bench/results/overlap-real-cpu.json.
"""

import itertools
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import flags, measure, report
from overlap import distance, quantiles
from simulated.run import BENCH, Steps, prepare_workers, rows

from unslothrl import cluster, embedded, variables
from unslothrl.cluster.base import Builders
from unslothrl.config.options import Config
from unslothrl.config.resolve import resolve
from unslothrl.data import tasks
from unslothrl.engines.base import Engine, Finished
from unslothrl.planning.machine import Machine
from unslothrl.planning.placement import ProcessPlan
from unslothrl.rewards import IN_PLACE, Chosen, Reward
from unslothrl.rewards.scorer import Scorer
from unslothrl.runs import build
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.training.trainer import Trainer
from unslothrl.types import Request
from unslothrl.weights import base_model

DRAWN = "drawn"  # of each actor: the lengths of its completions that training asked for
WARM_UP = 2  # steps that the speed leaves out
FLAGS: dict[str, Any] = {
    "model": "embedded",
    "dataset": "embedded",
    "engine": "transformers",
    "backend": "peft",
    "learner": "grpo",
    "number_of_actors": 1,
    "learner_chunk_size": 0,
    "num_candidates": 8,
    "topk": 8,
    "save_every": 10_000,
    "fit": "off",
}


@dataclass(frozen=True)
class Case:
    name: str
    staleness: int
    seed: int = 0
    prompts: int = 64
    steps: int = 12
    is_pinned: bool = True
    is_evaluated: bool = False


BOTH = "speed, synchronous on both cores"
CASES = [
    Case("speed, staleness 0", 0),
    Case("speed, staleness 1", 1),
    Case("speed, staleness 2", 2),
    Case(BOTH, 0, is_pinned=False),
    *(
        Case(f"reward, staleness {n}, seed {seed}", n, seed, 32, 24, is_evaluated=True)
        for seed in (0, 1, 2)
        for n in (0, 1, 2)
    ),
]


@dataclass(frozen=True)
class Pinned:
    """Builds the real actors and learners, an actor on the first core and a learner on the second;
    the actors leave the lengths that they draw in `folder`. `every_other_is_right`, whatever it
    says: then every group has a signal, and an update takes as long all through a run."""

    folder: Path
    is_pinned: bool
    every_other_is_right: bool

    def actor(self, config: Config, base: Path, plan: ProcessPlan) -> Any:
        self._pin(0)
        actor = build.build_actor(config, base, plan)
        actor.engine = Recorded(actor.engine, self.folder / f"{DRAWN}-{plan.name}", config)
        if self.every_other_is_right:
            number = itertools.count()
            reward = Reward(lambda text: float(next(number) % 2), runs=IN_PLACE)
            actor.scorer = Scorer([Chosen("alternating", 1.0, "", IN_PLACE, False, reward)])
        return actor

    def learner(self, config: Config, base: Path, plan: ProcessPlan) -> Any:
        self._pin(1)
        return build.build_learner(config, base, plan)

    def _pin(self, index: int) -> None:
        """Every thread that there is; later ones inherit it."""
        if self.is_pinned:
            core = sorted(os.sched_getaffinity(0))[index]
            for thread in Path("/proc/self/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})


class Recorded:
    """An engine that writes down the length of each completion that training asked for."""

    def __init__(self, engine: Engine, file: Path, config: Config):
        self.engine, self.file = engine, file
        self.temperature = config.temperature  # evaluation has another
        self.ids: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def add(self, request: Request) -> None:
        self.engine.add(request)
        if request.sampling.temperature == self.temperature:
            self.ids.add(request.id)

    def step(self) -> list[Finished]:
        finished = self.engine.step()
        lengths = [len(each.completion.token_ids) for each in finished if each.id in self.ids]
        self.ids.difference_update(each.id for each in finished)
        if lengths:
            with self.file.open("a") as file:
                file.write("".join(f"{length}\n" for length in lengths))
        return finished


def run(case: Case, folder: Path, rehearse: bool) -> dict:
    """-> the figures of a case."""
    threads = "1" if case.is_pinned else str(os.cpu_count())
    os.environ["OMP_NUM_THREADS"] = threads
    prepare_workers(BENCH)
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))
    steps = 2 if rehearse else case.steps
    every = steps if case.is_evaluated else 0
    options = {**FLAGS, "batch_size": 4 if rehearse else case.prompts, "seed": case.seed,
             "max_steps": steps, "eval_every": every, "max_staleness": case.staleness}  # fmt: skip
    if not case.is_evaluated:
        options["lr"] = 1e-6  # so that lengths stay as they are
    config = resolve(options).config
    base = base_model.prepare(config.model)
    data = tasks.load(build.data_options(config), base_model.load_tokenizer(base))
    run_folder = RunFolder.create(folder, "run", "")
    view = Steps()
    pinned = Pinned(folder, case.is_pinned, every_other_is_right=not case.is_evaluated)
    processes = cluster.start(
        config, base, machine, view.stage, builders=Builders(pinned.actor, pinned.learner)
    )
    try:
        trainer = Trainer(config, data, processes, run_folder, view, steps)
        view.begin()
        trainer.train()
    finally:
        processes.close()
    return figures(case, view, run_folder, folder)


def figures(case: Case, view: Steps, run_folder: RunFolder, folder: Path) -> dict:
    metrics = [row for row in run_folder.read_metrics() if "timing/step_s" in row]
    tokenizer = base_model.load_tokenizer(embedded.BASE)
    trained = [length(row, tokenizer) for row in rows(run_folder) if row["selected"]]
    drawn = [
        int(line) for file in folder.glob(f"{DRAWN}-*") for line in file.read_text().splitlines()
    ]
    later = [row for row in rows(run_folder, after=WARM_UP) if row["selected"]]
    seconds = view.at[-1] - view.at[min(WARM_UP, len(view.at) - 1) - 1]
    evals = [row for row in run_folder.read_metrics() if "eval/held_out/pass@1" in row]
    return {
        "trained tokens a second": round(sum(length(row, tokenizer) for row in later) / seconds, 1),
        "seconds a step, median": round(statistics.median(view.steps[1:]), 3),
        "generation_s, median": median(metrics, "timing/generation_s"),
        "update_s, median": median(metrics, "timing/update_s"),
        "pass@1 by step": [[row["step"], row["eval/held_out/pass@1"]] for row in evals],
        "staleness": {
            key: [row[key] for row in metrics]
            for key in sorted({key for row in metrics for key in row if "stale" in key})
        },
        "completions trained on": len(trained),
        "completions drawn": len(drawn),
        "lengths trained on, 5 25 50 75 95%": quantiles(trained),
        "lengths drawn, 5 25 50 75 95%": quantiles(drawn),
        "lengths": distance(trained, drawn),
        "notes": view.notes,
    }


def length(row: dict, tokenizer: Any) -> int:
    """Tokens of a rollout's completion, the one that ended it included."""
    ids = tokenizer(row["completion"], add_special_tokens=False)["input_ids"]
    return len(ids) + (row["finish_reason"] == "stop")


def median(metrics: list[dict], name: str) -> float:
    return round(statistics.median(row[name] for row in metrics), 3)


def summary(runs: dict[str, dict]) -> dict:
    """What overlap gains over both kinds of synchronous run, and the reward for each staleness."""
    speed = {
        name: runs[case.name]["trained tokens a second"]
        for case in CASES
        if case.name in runs and not case.is_evaluated
        for name in [case.name]
    }
    gains = {}
    for other in ("speed, staleness 0", BOTH):
        if other in speed:
            gains[f"over {other}"] = {
                name: round(value / speed[other], 3)
                for name, value in speed.items()
                if name not in ("speed, staleness 0", BOTH)
            }
    last: dict[str, list[float]] = {}
    for case in CASES:
        if case.is_evaluated and case.name in runs:
            evals = runs[case.name]["pass@1 by step"]
            last.setdefault(f"staleness {case.staleness}", []).append(evals[-1][1])
    return {"speed": speed, "gain": gains, "last pass@1, by seed": last}


def main() -> None:
    given = flags(__doc__, "bench-overlap-real").parse_args()
    runs = measure(given, CASES, run)
    report(given, "overlap-real", "python bench/overlap_real.py", CASES, summary(runs), runs)


if __name__ == "__main__":
    main()

"""A run whose processes are killed, stopped, cut off or slowed, on hosts of tests/hosts.py.

    python bench/faults.py quiet            # first: what the others are compared with
    python bench/faults.py kills            # an actor killed, one to two replacement times apart
    python bench/faults.py stopped          # an actor hangs: SIGSTOP
    python bench/faults.py cable            # a host's cable out for some seconds, then for good
    python bench/faults.py slow             # an actor that runs for a tenth of the time
    python bench/faults.py quiet-learners   # the same with two learners, for
    python bench/faults.py learners         # one of two learners killed
    python bench/faults.py all              # each that bench/results/faults-cpu.json does not have

Real vLLM, 40 steps, two passes over 160 problems. A run passes where it ends with all steps done,
every prompt consumed once a pass, a reward within noise of the quiet run, and nothing left behind.

Time lost, a failure: the seconds by which the steps in which something failed exceed the median of
the others, over the failures; beside it how long an actor took to come back, which it may cost.
"""

import argparse
import contextlib
import json
import math
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import psutil  # noqa: E402
from facts import facts, result_file  # noqa: E402
from hosts import hosts, start_ray  # noqa: E402
from run_on_hosts import RunOnHosts, rewards, write_problems  # noqa: E402

MEMORY_GB = (8, 2.5)  # so the learners are on the first host, and one actor on each
STEPS, BATCH, CANDIDATES, PASSES = 40, 8, 8, 2
OPTIONS = {
    "model": "embedded",
    "system_prompt": "",
    "engine": "vllm",
    "backend": "peft",
    "episodes": PASSES,
    "batch_size": BATCH,
    "num_candidates": CANDIDATES,
    "topk": CANDIDATES,
    "max_new_tokens": 64,
    "train_batch_size": 32,
    "lr": 5e-4,
    "max_lora_rank": 16,
    "lora_alpha": 32,
    "temperature": 1.0,
    "number_of_actors": 2,
    "learner_chunk_size": 0,
    "kv_cache_mb": 64,
    "eval_every": 0,
    "eval_dataset": "embedded",  # all problems of the file are trained on
    "save_every": 10,
    "checkpoint_every": 5,
}
START_S, STEP_S, COMES_BACK_S = 240.0, 120.0, 240.0
CABLE_OUT_S = 5.0  # shorter than any deadline of Ray's
ON_S, OFF_S = 0.02, 0.18  # a tenth of the time
TAIL = 10  # steps at the end whose reward is compared


@dataclass
class Fault:
    """Something that was done to a run."""

    kind: str
    process: str
    at: float  # by time.monotonic
    step: int  # which was under way
    back_s: float | None = None  # after that many seconds the process, or another for it, was ready


@dataclass
class Injection:
    """Does things to a run, and records them."""

    run: RunOnHosts
    steps: int  # of the run
    draw: random.Random
    faults: list[Fault] = field(default_factory=list)

    @property
    def step(self) -> int:
        return len(self.run.metrics()) + 1

    def wait_for(self, share: float) -> None:
        """Until that share of the steps is done."""
        self.run.wait_for_step(max(1, round(share * self.steps)), START_S + self.steps * STEP_S)

    def record(self, kind: str, process: str) -> Fault:
        self.faults.append(Fault(kind, process, time.monotonic(), self.step))
        return self.faults[-1]

    def signal(self, kind: str, number: int, of: str = "actor") -> Fault:
        """Sends a signal to a random process whose name begins with `of`."""
        alive = {name: it for name, it in self.run.processes().items() if name.startswith(of)}
        name = self.draw.choice(sorted(alive))
        fault = self.record(kind, name)
        alive[name][1].send_signal(number)
        return fault

    def wait_back(self, fault: Fault, text: str) -> None:
        """Until the driver prints `text` about the process of a fault."""
        line = self.run.wait(
            f"{fault.process} back after {fault.kind}",
            lambda: self.run.line_after(fault.at, text.format(fault.process)) or self.is_over(),
            COMES_BACK_S,
        )
        if line is not True:
            fault.back_s = line.at - fault.at

    def is_over(self) -> bool:
        return self.run.driver.poll() is not None

    def wait_s(self, seconds: float) -> None:
        """Some seconds, or until the run ends."""
        with contextlib.suppress(Exception):
            self.run.driver.wait(max(0.0, seconds))


READY = "{} is there"  # what the driver prints when a replaced actor works


def kills(inject: Injection) -> None:
    inject.wait_for(0.05)
    while not inject.is_over() and inject.step < inject.steps:
        fault = inject.signal("kill", signal.SIGKILL)
        inject.wait_back(fault, READY)
        if fault.back_s is not None:
            gap = inject.draw.uniform(1, 2) * fault.back_s
            inject.wait_s(fault.at + gap - time.monotonic())


def stopped(inject: Injection) -> None:
    for share in (0.1, 0.5):
        inject.wait_for(share)
        inject.wait_back(inject.signal("stop", signal.SIGSTOP), READY)


def cable(inject: Injection) -> None:
    head, other = inject.run.hosts
    inject.wait_for(0.1)
    fault = inject.record(f"cable out for {CABLE_OUT_S:g} s", other.name)
    other.unplug()
    inject.wait_s(CABLE_OUT_S)
    other.plug()
    inject.wait_for(0.4)
    (gone,) = [name for name, (host, _) in inject.run.processes().items() if host is other]
    fault = inject.record("cable out until its actor is replaced", gone)
    other.unplug()
    inject.wait_back(fault, READY)
    other.plug()  # Ray ends itself on a node that was given up for dead; its owner starts it again
    other.stop_ray()
    other.start_ray(head)


def slow(inject: Injection) -> None:
    """Its process, and every process that it has started, runs for a tenth of the time."""
    inject.wait_for(0.1)
    name, (_, process) = sorted(inject.run.processes().items())[0]
    fault = inject.record("a tenth of the time", name)
    ended = threading.Event()

    def drag() -> None:
        with contextlib.suppress(psutil.Error):
            while not ended.is_set() and not inject.is_over():
                process.send_signal(signal.SIGSTOP)
                ended.wait(OFF_S)
                process.send_signal(signal.SIGCONT)
                ended.wait(ON_S)

    thread = threading.Thread(target=drag)
    thread.start()
    try:
        inject.wait_back(fault, READY)
    finally:
        ended.set()
        thread.join()


def learners(inject: Injection) -> None:
    for share in (0.3, 0.7):
        inject.wait_for(share)
        fault = inject.signal("kill", signal.SIGKILL, "learner")
        inject.wait_back(fault, "all learners start again")
        inject.run.wait_for_step(fault.step, COMES_BACK_S)  # after those that are done again
        fault.back_s = time.monotonic() - fault.at


def nothing(inject: Injection) -> None:
    """A quiet run."""


KINDS: dict[str, tuple[Callable[[Injection], None], dict[str, Any]]] = {
    "quiet": (nothing, {}),
    "kills": (kills, {}),
    "stopped": (stopped, {}),
    "cable": (cable, {}),
    "slow": (slow, {}),
    "quiet-learners": (nothing, {"number_of_learners": 2, "number_of_actors": 1}),
    "learners": (learners, {"number_of_learners": 2, "number_of_actors": 1}),
}


def measure(kind: str, steps: int, seed: int, keep: Path | None) -> dict[str, Any]:
    """Runs one kind. -> its figures"""
    injure, more = KINDS[kind]
    with hosts(2) as cluster:
        start_ray(cluster, MEMORY_GB)
        problems = write_problems(cluster[0], steps * BATCH // PASSES)
        options = {**OPTIONS, **more, "max_steps": steps, "dataset": problems, "seed": seed}
        run = RunOnHosts(cluster, kind, options)
        inject = Injection(run, steps, random.Random(seed))
        try:
            injure(inject)
            code = run.finish(START_S + steps * STEP_S)
            figures = judged(run, inject, code)
        finally:
            run.stop()
            if keep is not None:
                (keep / f"{kind}.log").write_text(run.output + "\n")
        return {"options": " ".join(run.command), **figures}


def judged(run: RunOnHosts, inject: Injection, code: int) -> dict[str, Any]:
    rows, earned = run.metrics(), rewards(run)
    summary = json.loads((run.folder / "summary.json").read_text())
    wrong = run.consumed(inject.steps * BATCH // PASSES, PASSES, CANDIDATES)
    seconds = [row["timing/step_s"] for row in rows]
    tokens = sum(row["rollout/tokens"] for row in rows)
    wall = run.lines[-1].at - run.began
    return {
        "exit_code": code,
        "status": summary["status"],
        "steps": summary["steps"],
        "steps_wanted": inject.steps,
        "prompts_not_consumed_once_a_pass": wrong,
        "left_behind": run.left_behind(),
        "wall_s": round(wall, 1),
        "steps_s": round(sum(seconds), 1),
        "tokens_per_s_of_steps": round(tokens / sum(seconds)),
        "reward_first": round(statistics.mean(earned[:TAIL]), 3),
        "reward_last": round(statistics.mean(earned[-TAIL:]), 3),
        "reward_by_step": [round(value, 3) for value in earned],
        "step_s": [round(value, 2) for value in seconds],
        "faults": [
            {
                "kind": fault.kind,
                "process": fault.process,
                "step": fault.step,
                "back_s": fault.back_s and round(fault.back_s, 1),
            }
            for fault in inject.faults
        ],
        **lost(seconds, inject.faults),
        "notes": [line.text for line in run.lines if "start" in line.text or "there" in line.text],
    }


def lost(seconds: Sequence[float], faults: Sequence[Fault]) -> dict[str, Any]:
    """The seconds that a failure costs, by the steps from the one in which it came to the one in
    which the process was back."""
    if not faults:
        return {"median_step_s": round(statistics.median(seconds), 2)}
    hit: set[int] = set()
    for fault in faults:
        end, left = fault.step, fault.back_s or 0.0
        while end <= len(seconds) and left > 0:
            left -= seconds[end - 1]
            end += 1
        hit |= set(range(fault.step, max(end, fault.step + 1)))
    calm = [s for step, s in enumerate(seconds, 1) if step not in hit]
    median = statistics.median(calm) if calm else math.nan
    more = sum(s - median for step, s in enumerate(seconds, 1) if step in hit)
    backs = [fault.back_s for fault in faults if fault.back_s is not None]
    return {
        "median_step_s": round(median, 2),
        "lost_s_a_failure": round(more / len(faults), 1),
        "back_s": round(statistics.mean(backs), 1) if backs else None,
    }


def problems_of(figures: dict[str, Any], quiet: dict[str, Any] | None) -> list[str]:
    """Why a run has not passed."""
    problems = []
    ended = figures["exit_code"], figures["status"], figures["steps"]
    if ended != (0, "finished", figures["steps_wanted"]):
        problems.append("ended with exit code {}, {}, after {} steps".format(*ended))
    problems += [*figures["prompts_not_consumed_once_a_pass"], *figures["left_behind"]]
    if quiet is not None:
        noise = 3 * math.sqrt(2) * statistics.stdev(quiet["reward_by_step"][-TAIL:]) / TAIL**0.5
        apart = abs(figures["reward_last"] - quiet["reward_last"])
        figures["reward_from_quiet"] = {"apart": round(apart, 3), "noise": round(noise, 3)}
        if apart > noise:
            problems.append(f"reward {figures['reward_last']}, quiet {quiet['reward_last']}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=[*KINDS, "all"])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for what the drivers print")
    options = parser.parse_args()
    file = result_file("faults")
    bad = 0
    for kind in KINDS if options.kind == "all" else [options.kind]:
        result = json.loads(file.read_text()) if file.exists() else {"runs": {}}
        if options.kind == "all" and kind in result["runs"]:
            continue
        figures = measure(kind, options.steps, options.seed, options.keep)
        quiet = "quiet-learners" if "learners" in kind else "quiet"
        problems = problems_of(figures, None if kind == quiet else result["runs"].get(quiet))
        command = f"python bench/faults.py {kind} --steps {options.steps} --seed {options.seed}"
        result["runs"][kind] = {"command": command, **facts(), "problems": problems, **figures}
        file.write_text(json.dumps({**facts(), "runs": result["runs"]}, indent=1) + "\n")
        print(f"{kind}: {'; '.join(problems) or 'passed'}", flush=True)
        bad += bool(problems)
    return int(bad > 0)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())

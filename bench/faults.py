"""A run whose processes are killed, stopped, cut off or slowed, on hosts of tests/hosts.py.

    python bench/faults.py quiet            # first: what the others are compared with
    python bench/faults.py kills            # an actor killed, one to two replacement times apart
    python bench/faults.py stopped          # an actor hangs: SIGSTOP
    python bench/faults.py cable            # a host's cable out for some seconds, then for good
    python bench/faults.py slow             # an actor that runs for a tenth of the time
    python bench/faults.py quiet-learners   # the same with two learners, for
    python bench/faults.py learners         # one of two learners killed
    python bench/faults.py starting         # kills while a process is built, and in its first call
    python bench/faults.py both             # both actors killed at once
    python bench/faults.py stopped-learner  # the only learner hangs: SIGSTOP
    python bench/faults.py raylet           # Ray's own process of a host killed; it joins again
    python bench/faults.py host             # a host vanishes
    python bench/faults.py overlap          # kills at --max_staleness 1 --partial_rollouts
    python bench/faults.py three            # three hosts and three actors, one of them killed
    python bench/faults.py all              # each that has not passed at this commit: resumable

Real vLLM, two passes over 4 problems a step: 40 steps, or as many as `--steps` says. A run passes
where it ends with all steps done, every prompt consumed once a pass, a reward within noise of the
quiet run of as many steps and the same seed, nothing left behind, and no more time lost a failure
than an actor takes to start and a step to be drawn again; where the only learner hangs, also the
seconds after which its silence counts, since starting it again may cost many steps.

Time lost, a failure: the seconds by which the steps in which something failed exceed the median of
the others, over the failures. Where learners start again from a checkpoint: the seconds until the
step that was under way is done, less those that its steps usually take.
"""

import argparse
import contextlib
import json
import math
import os
import random
import re
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import psutil  # noqa: E402
from facts import commit, facts, result_file  # noqa: E402
from hosts import hosts, start_ray  # noqa: E402
from run_on_hosts import RunOnHosts, rewards, write_problems  # noqa: E402

from unslothrl.cluster.ray_calls import PING_S  # noqa: E402

MEMORY_GB = (8, 2.5)  # so the learners are on the first host, and one actor on each
MEMORY_FLAG = f"--memory={int(MEMORY_GB[1] * 2**30)}"  # of the second host's Ray
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
SHORT = 12  # steps of the kinds that `all` runs beside the long ones
NOTES = ("again", "is ready", "wait", "joins", "leaves", "node")
NOTICED = ("started again", "start again", "leaves its node")  # what the driver prints of a fault


@dataclass
class Fault:
    """Something that was done to a run."""

    kind: str
    process: str
    at: float  # by time.monotonic
    step: int  # which was under way
    back_s: float | None = None  # after that many seconds the process, or another for it, was ready
    noticed_s: float | None = None  # after that many the driver gave it up
    start_s: float | None = None  # that the one in its place took to start
    pid: int = 0
    is_failure: bool = True
    redone: int = 0  # steps that were computed again


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

    def at(self, *shares: float) -> Iterator[None]:
        """Comes back when each of these shares of the steps is done, unless the run is over."""
        for share in shares:
            self.wait_for(share)
            if not self.is_over():
                yield

    def record(self, kind: str, process: str, is_failure: bool = True) -> Fault:
        at = time.monotonic()
        self.faults.append(Fault(kind, process, at, self.step, is_failure=is_failure))
        return self.faults[-1]

    def signal(self, kind: str, number: int, of: str = "actor") -> Fault:
        """Sends a signal to a random process whose name begins with `of`."""
        alive = {name: it for name, it in self.run.processes().items() if name.startswith(of)}
        name = self.draw.choice(sorted(alive))
        fault = self.record(kind, name)
        fault.pid = alive[name][1].pid
        alive[name][1].send_signal(number)
        return fault

    def wait_back(self, fault: Fault, text: str) -> None:
        """Until the driver prints `text` about the process of a fault."""
        line = self.run.wait(
            f"{fault.process} back after {fault.kind}",
            lambda: self.run.line_after(fault.at, text.format(fault.process)) or self.is_over(),
            COMES_BACK_S,
        )
        noticed = [
            each.at - fault.at
            for each in self.run.lines
            if each.at > fault.at
            and each.text.startswith(fault.process)
            and any(part in each.text for part in NOTICED)
        ]
        fault.noticed_s = noticed[0] if noticed else None
        if line is not True:
            fault.back_s = line.at - fault.at
            fault.start_s = fault.back_s - noticed[-1] if noticed else None

    def wait_for_process(self, name: str, text: str, but: int = 0) -> psutil.Process:
        """-> the process of that name, other than `but`, once it is at what Ray calls `text`."""

        def look() -> psutil.Process | None:
            with contextlib.suppress(psutil.Error, IndexError):
                process = self.run.processes()[name][1] if name in self.run.processes() else None
                if process is not None and process.pid != but and text in process.cmdline()[0]:
                    return process
            return None

        return self.run.wait(f"{name} at {text}", look, START_S, poll_s=0.3)  # a look takes CPU

    def is_over(self) -> bool:
        return self.run.driver.poll() is not None

    def wait_s(self, seconds: float) -> None:
        """Some seconds, or until the run ends."""
        with contextlib.suppress(Exception):
            self.run.driver.wait(max(0.0, seconds))


READY = "{} is ready"  # what the driver prints when a replaced actor works


def kills(inject: Injection) -> None:
    inject.wait_for(0.05)
    while not inject.is_over() and inject.step < inject.steps:
        fault = inject.signal("kill", signal.SIGKILL)
        inject.wait_back(fault, READY)
        if fault.back_s is not None:
            gap = inject.draw.uniform(1, 2) * fault.back_s
            inject.wait_s(fault.at + gap - time.monotonic())


def stopped(inject: Injection) -> None:
    for _ in inject.at(0.1, 0.5):
        inject.wait_back(inject.signal("stop", signal.SIGSTOP), READY)


def cable(inject: Injection) -> None:
    head, other = inject.run.hosts
    inject.wait_for(0.1)
    inject.record(f"cable out for {CABLE_OUT_S:g} s", other.name, is_failure=False)
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
    other.start_ray(head, MEMORY_FLAG)


def slow(inject: Injection) -> None:
    """Its process, and every process that it has started, runs for a tenth of the time."""
    inject.wait_for(0.1)
    name, (_, process) = sorted(inject.run.processes().items())[0]
    dragged = [process, *process.children(recursive=True)]
    fault = inject.record("a tenth of the time", name)
    ended = threading.Event()

    def send(number: int) -> None:
        for each in dragged:
            with contextlib.suppress(psutil.Error):
                each.send_signal(number)

    def drag() -> None:
        while not ended.is_set() and not inject.is_over() and process.is_running():
            send(signal.SIGSTOP)
            ended.wait(OFF_S)
            send(signal.SIGCONT)
            ended.wait(ON_S)

    thread = threading.Thread(target=drag)
    thread.start()
    try:
        inject.wait_back(fault, READY)
    finally:
        ended.set()
        thread.join()


def learners(inject: Injection) -> None:
    for _ in inject.at(0.3, 0.7):
        learner_back(inject, inject.signal("kill", signal.SIGKILL, "learner"))


def learner_back(inject: Injection, fault: Fault) -> None:
    """Waits until the step that was under way is done, after those that are computed again."""
    inject.wait_back(fault, "all learners start again")
    line = inject.run.line_after(fault.at, "all learners start again")
    assert line is not None and fault.back_s is not None, inject.run.output
    fault.noticed_s = fault.back_s
    from_step = re.search(r"again from step (\d+)", line.text)
    fault.redone = fault.step - 1 - (int(from_step[1]) if from_step else 0)
    first = fault.step - fault.redone
    inject.run.wait("steps again", lambda: inject.step <= first or inject.is_over(), COMES_BACK_S)
    inject.run.wait_for_step(first, COMES_BACK_S + STEP_S)
    row = inject.run.metrics()[first - 1]
    fault.start_s = time.monotonic() - line.at - row["timing/step_s"]
    inject.run.wait_for_step(fault.step, COMES_BACK_S + STEP_S * (fault.redone + 1))
    fault.back_s = time.monotonic() - fault.at


def starting(inject: Injection) -> None:
    """An actor and the learner while they are built, an actor in its first call, which compiles,
    then one at work, and the one in its place while that is built."""
    for name, text, kind in (  # before the first step, which takes no longer for it
        ("actor-0", "ray::Host", "kill while it is built"),
        ("learner-0", "ray::Host", "kill while it is built"),
        ("actor-1", "ray::Host.call", "kill in its first call"),
    ):
        victim = inject.wait_for_process(name, text)
        fault = inject.record(kind, name, is_failure=False)
        victim.kill()
        inject.run.wait(
            f"{name} given up", lambda at=fault.at: inject.run.line_after(at, "again"), START_S
        )
    inject.wait_for(0.3)
    first = inject.signal("kill", signal.SIGKILL)
    inject.run.wait("noticed", lambda: inject.run.line_after(first.at, "started again"), START_S)
    victim = inject.wait_for_process(first.process, "ray::Host", but=first.pid)
    second = inject.record("kill while its replacement is built", first.process)
    victim.kill()
    inject.wait_back(second, READY)


def both(inject: Injection) -> None:
    for _ in inject.at(0.2, 0.6):
        alive = {n: it for n, (_, it) in inject.run.processes().items() if n.startswith("actor")}
        faults = [inject.record("kill of all actors at once", name) for name in alive]
        for process in alive.values():
            process.kill()
        for fault in faults:
            inject.wait_back(fault, READY)


def stopped_learner(inject: Injection) -> None:
    inject.wait_for(0.5)
    learner_back(inject, inject.signal("stop", signal.SIGSTOP, "learner"))


def raylet(inject: Injection) -> None:
    head, other = inject.run.hosts
    inject.wait_for(0.2)
    (gone,) = [name for name, (host, _) in inject.run.processes().items() if host is other]
    fault = inject.record("its raylet killed", gone)
    for process in other.processes():
        with contextlib.suppress(psutil.Error, IndexError):
            if process.cmdline()[0].endswith("/raylet"):
                process.kill()
    inject.run.wait(
        "noticed", lambda: inject.run.line_after(fault.at, gone) or inject.is_over(), START_S
    )
    other.stop_ray()
    other.start_ray(head, MEMORY_FLAG)
    inject.wait_back(fault, READY)


def host(inject: Injection) -> None:
    other = inject.run.hosts[-1]
    inject.wait_for(0.3)
    (gone,) = [name for name, (host, _) in inject.run.processes().items() if host is other]
    fault = inject.record("its host vanishes", gone)
    other.unplug()  # so that not even its end is heard of
    other.end()
    inject.wait_back(fault, READY)


def three(inject: Injection) -> None:
    inject.wait_for(0.5)
    inject.wait_back(inject.signal("kill", signal.SIGKILL), READY)


def nothing(inject: Injection) -> None:
    """A quiet run."""


TWO_LEARNERS = {"number_of_learners": 2, "number_of_actors": 1}
OVERLAP = {"max_staleness": 1, "partial_rollouts": True}


@dataclass(frozen=True)
class Kind:
    """What is done to a run, and what the run is."""

    injure: Callable[[Injection], None] = nothing
    options: Mapping[str, Any] = field(default_factory=dict)
    memory_gb: Sequence[float] = MEMORY_GB  # of each host
    quiet: str = "quiet"  # the kind that its reward is compared with
    is_short: bool = False
    known_after_s: float = 0.0  # what it may cost beside, as a hang is taken for one no sooner


KINDS = {
    "quiet": Kind(),
    "kills": Kind(kills),
    "stopped": Kind(stopped),
    "cable": Kind(cable),
    "slow": Kind(slow),
    "quiet-learners": Kind(options=TWO_LEARNERS, quiet="quiet-learners"),
    "learners": Kind(learners, TWO_LEARNERS, quiet="quiet-learners"),
    "starting": Kind(starting, is_short=True),
    "both": Kind(both, is_short=True),
    "stopped-learner": Kind(stopped_learner, is_short=True, known_after_s=PING_S + 1),
    "raylet": Kind(raylet, is_short=True),
    "host": Kind(host, is_short=True),
    "overlap": Kind(kills, OVERLAP, is_short=True),
    "three": Kind(three, {"number_of_actors": 3}, (8, 2.5, 2.5), is_short=True),
}


def key_of(kind: str, steps: int, seed: int) -> str:
    """A run's name in the results."""
    return kind + f", {steps} steps" * (steps != STEPS) + f", seed {seed}" * (seed != 0)


def all_runs() -> list[tuple[str, int, int]]:
    """(kind, steps, seed) of each, those first that others are compared with."""
    runs = [(kind, STEPS, 0) for kind, its in KINDS.items() if not its.is_short]
    return [*runs, ("quiet", SHORT, 0)] + [
        (k, SHORT, 0) for k, its in KINDS.items() if its.is_short
    ]


def measure(kind: str, steps: int, seed: int, keep: Path | None) -> dict[str, Any]:
    """Runs one kind. -> its figures"""
    injure, more = KINDS[kind].injure, KINDS[kind].options
    with hosts(len(KINDS[kind].memory_gb)) as cluster:
        start_ray(cluster, KINDS[kind].memory_gb)
        problems = write_problems(cluster[0], steps * BATCH // PASSES)
        options = {**OPTIONS, **more, "max_steps": steps, "dataset": problems, "seed": seed}
        run = RunOnHosts(cluster, kind, options)
        inject = Injection(run, steps, random.Random(seed))
        try:
            injure(inject)
            code = run.finish(START_S + steps * STEP_S)
            figures = judged(run, inject, code, KINDS[kind].known_after_s)
        finally:
            run.stop()
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{key_of(kind, steps, seed)}.log").write_text(run.output + "\n")
        return {"options": " ".join(run.command), **figures}


def judged(run: RunOnHosts, inject: Injection, code: int, known_after_s: float) -> dict[str, Any]:
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
                "noticed_s": fault.noticed_s and round(fault.noticed_s, 1),
                "start_s": fault.start_s and round(fault.start_s, 1),
                "back_s": fault.back_s and round(fault.back_s, 1),
                "steps_computed_again": fault.redone,
            }
            for fault in inject.faults
        ],
        **lost(seconds, inject.faults, known_after_s),
        "notes": [line.text for line in run.lines if any(part in line.text for part in NOTES)],
    }


def lost(
    seconds: Sequence[float], faults: Sequence[Fault], known_after_s: float = 0.0
) -> dict[str, Any]:
    """The seconds that a failure costs, by the steps from the one in which it came to the one in
    which the process was back; the median is of the steps in which nothing was done to the run."""
    failures = [fault for fault in faults if fault.is_failure]
    hit = set().union(*(steps_of(fault, seconds) for fault in failures))
    touched = hit.union(*(steps_of(fault, seconds) for fault in faults))
    calm = [s for step, s in enumerate(seconds, 1) if step not in touched]
    median = statistics.median(calm or seconds)
    figures = {"median_step_s": round(median, 2)}
    if not failures:
        return figures
    more = sum(s - median for step, s in enumerate(seconds, 1) if step in hit)
    learners = [fault for fault in failures if fault.process.startswith("learner")]
    if learners:  # the step in which one was lost is computed again: its record is not there
        more = sum((fault.back_s or 0.0) - median for fault in learners)
    figures["lost_s_a_failure"] = round(more / len(failures), 1)
    starts = [fault.start_s for fault in failures if fault.start_s is not None]
    if starts:
        redrawn = 1 + statistics.mean(fault.redone for fault in failures)
        may_lose = known_after_s + statistics.mean(starts) + median * redrawn
        figures["may_lose_s_a_failure"] = round(may_lose, 1)
    return figures


def steps_of(fault: Fault, seconds: Sequence[float]) -> set[int]:
    """The steps from the one in which a fault came to the one in which the process was back."""
    end, left = fault.step, fault.back_s or 0.0
    while end <= len(seconds) and left > 0:
        left -= seconds[end - 1]
        end += 1
    return set(range(fault.step, max(end, fault.step + 1)))


def problems_of(figures: dict[str, Any], quiet: dict[str, Any] | None) -> list[str]:
    """Why a run has not passed."""
    problems = []
    ended = figures["exit_code"], figures["status"], figures["steps"]
    if ended != (0, "finished", figures["steps_wanted"]):
        problems.append("ended with exit code {}, {}, after {} steps".format(*ended))
    problems += [*figures["prompts_not_consumed_once_a_pass"], *figures["left_behind"]]
    may_lose = figures.get("may_lose_s_a_failure")
    if may_lose is not None and figures["lost_s_a_failure"] > may_lose:
        problems.append(f"lost {figures['lost_s_a_failure']} s a failure, may lose {may_lose} s")
    if quiet is not None:
        noise = 3 * math.sqrt(2) * statistics.stdev(quiet["reward_by_step"][-TAIL:]) / TAIL**0.5
        apart = abs(figures["reward_last"] - quiet["reward_last"])
        figures["reward_from_quiet"] = {"apart": round(apart, 3), "noise": round(noise, 3)}
        if apart > noise:
            problems.append(f"reward {figures['reward_last']}, quiet {quiet['reward_last']}")
    return problems


def is_done(run: Mapping[str, Any] | None) -> bool:
    """Whether a run has passed with the code as it is."""
    return run is not None and not run["problems"] and run["commit"] == commit()


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
    chosen = [(options.kind, options.steps, options.seed)]
    bad = 0
    for kind, steps, seed in all_runs() if options.kind == "all" else chosen:
        runs = json.loads(file.read_text())["runs"] if file.exists() else {}
        key = key_of(kind, steps, seed)
        if options.kind == "all" and is_done(runs.get(key)):
            continue
        load = os.getloadavg()[0]
        figures = measure(kind, steps, seed, options.keep)
        runs = json.loads(file.read_text())["runs"] if file.exists() else {}  # others may have run
        quiet = (
            None if kind == KINDS[kind].quiet else runs.get(key_of(KINDS[kind].quiet, steps, seed))
        )
        problems = problems_of(figures, quiet)
        command = f"python bench/faults.py {kind} --steps {steps} --seed {seed}"
        loads = {"load_before": round(load, 2), "load_after": round(os.getloadavg()[0], 2)}
        runs[key] = {"command": command, **facts(), **loads, "problems": problems, **figures}
        file.write_text(json.dumps({**facts(), "runs": runs}, indent=1) + "\n")
        print(f"{key}: {'; '.join(problems) or 'passed'}", flush=True)
        bad += bool(problems)
    return int(bad > 0)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())

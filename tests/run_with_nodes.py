"""A run of the real trainer over engines without a model, on Ray nodes that join, drain and die.

    python tests/run_with_nodes.py              # prints what has happened, as JSON

It starts on one node with one actor. A second node joins and gets an actor; it drains, and its
actor goes to the first node; a third one joins and gets another; that node is killed. Each comes
when what the one before it should cause has happened. Every prompt must be trained on once.
"""

import argparse
import contextlib
import functools
import json
import os
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from fake_processes import PATH, build_actor, build_learner, config_of
from fakes import FakeTasks, FakeView
from ray_nodes import RAY, RayNodes, kill_session

from unslothrl import cluster, embedded
from unslothrl.data.tasks import Data
from unslothrl.planning.placement import ACTOR, LEARNER
from unslothrl.system import variables
from unslothrl.system.machine import Machine
from unslothrl.tracking.rows import read_jsonl
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.training import rollouts
from unslothrl.training.trainer import Trainer

BATCH, CANDIDATES = 6, 2
STEPS = 10_000  # more than there will be
MOST_S = 240.0


class Enough(Exception):
    """All has happened."""


def begin(function: Callable, *arguments) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


@dataclass
class Story:
    """Causes one thing after the other, and looks at what comes of it after each step."""

    nodes: RayNodes
    marks: Path  # where each actor leaves a file NAME.PID when it starts
    is_alive: Callable[[], set[str]]  # the ids of the nodes that live
    work: Callable[[], dict[str, int]]  # groups that were given to each actor
    happened: list[dict] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self):
        self.began = time.monotonic()
        self.chapters = self.tell()

    def after(self, step: int) -> None:
        self.steps = step
        assert time.monotonic() - self.began < MOST_S, (self.happened, self.processes())
        try:
            next(self.chapters)
        except StopIteration:
            raise Enough from None

    def processes(self) -> dict[str, list[str]]:
        """The actors that live: name -> the home folders of their nodes."""
        found: dict[str, list[str]] = {}
        for mark in self.marks.iterdir():
            try:
                home = psutil.Process(int(mark.suffix[1:])).environ().get("HOME", "")
            except psutil.Error:
                continue
            found.setdefault(mark.stem, []).append(Path(home).name)
        return {name: sorted(homes) for name, homes in found.items()}

    def wait_for(self, what: str, expected: dict[str, list[str]]) -> Iterator[None]:
        """Until these actors live on these nodes, and each has been given groups since."""
        while self.processes() != expected:
            yield
        before = self.work()
        while any(self.work().get(name, 0) <= before.get(name, 0) for name in expected):
            yield
        seconds = round(time.monotonic() - self.began, 1)
        self.happened.append({"what": what, "step": self.steps, "seconds": seconds})

    def tell(self) -> Iterator[None]:
        yield from self.wait_for("started", {"actor-0": ["home0"]})
        first = self.is_alive()
        begin(self.nodes.add, "--num-cpus=2")
        yield from self.wait_for("joined", {"actor-0": ["home0"], "actor-1": ["home1"]})
        (second,) = self.is_alive() - first
        begin(self.drain, second)
        both = {"actor-0": ["home0"], "actor-1": ["home0"]}
        yield from self.wait_for("drained", both)
        begin(self.nodes.add, "--num-cpus=2")
        yield from self.wait_for("another joined", {**both, "actor-2": ["home2"]})
        kill_session(self.nodes.processes[2].pid)
        yield from self.wait_for("killed", {**both, "actor-2": ["home0"]})

    def drain(self, node: str) -> None:
        subprocess.run(
            [RAY, "drain-node", f"--address={self.nodes.address}", f"--node-id={node}",
             "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=test",
             "--deadline-remaining-seconds=600"],
            env=self.nodes.environment(self.nodes.folder / "home0"), check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_staleness", type=int, default=0)
    given = parser.parse_args()
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112, else all others stall them for seconds
    os.environ["PYTHONPATH"] = PATH
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(RayNodes("--num-cpus=2")) as nodes,
    ):
        os.environ |= nodes.environment(nodes.folder / "home0")
        print(json.dumps(run(nodes, Path(folder), given), indent=1))


def run(nodes: RayNodes, folder: Path, options: argparse.Namespace) -> dict:
    import ray

    marks = folder / "processes"
    marks.mkdir()
    given: dict[str, int] = {}
    give = rollouts.RolloutStream._give

    def count(stream, member, indices):
        indices = list(indices)
        given[member.name] = given.get(member.name, 0) + len(indices)
        give(stream, member, indices)

    rollouts.RolloutStream._give = count
    flags = {
        "number_of_actors": 1, "batch_size": BATCH, "num_candidates": CANDIDATES,
        "topk": CANDIDATES, "max_new_tokens": 40, "max_prompt_tokens": 64,
        "max_staleness": options.max_staleness, "ray_address": nodes.address,
    }  # fmt: skip

    def alive() -> set[str]:
        return {each["NodeID"] for each in ray.nodes() if each["Alive"]}

    story = Story(nodes, marks, alive, lambda: dict(given))
    machine = Machine.detect()
    variables.apply(machine.cpus, bool(machine.gpus))
    config = config_of({**flags, "max_steps": STEPS})
    run_folder = RunFolder.create(folder, "run", "")
    view = FakeView()
    view.step = lambda metrics, step, total: story.after(step)
    builders = {ACTOR: functools.partial(marked, marks), LEARNER: build_learner}
    processes = cluster.start(config, embedded.BASE, machine, lambda line: None, builders)
    try:
        trainer = Trainer(config, Data(FakeTasks(), {}), processes, run_folder, view, STEPS)
        trainer.train()
    except Enough:
        trainer.saving.wait()
    finally:
        processes.close()
    counts = consumed(run_folder)
    drawn = BATCH * (story.steps + options.max_staleness)
    times = {prompt: [counts[str(prompt), i] for i in range(CANDIDATES)] for prompt in range(drawn)}
    state = trainer.state
    never = [prompt for prompt, n in times.items() if min(n) == 0 and prompt < state.position]
    return {
        "happened": story.happened,
        "steps": story.steps,
        "notes": view.notes,
        "completions": sum(counts.values()),
        "more than once": sorted(prompt for prompt, n in times.items() if max(n) > 1),
        "lost": sorted(set(never) - set(state.outstanding)),
        "left behind": left_behind(marks),
    }


def marked(marks: Path, config, base: Path, plan):
    (marks / f"{plan.name}.{os.getpid()}").touch()
    return build_actor(config, base, plan)


def consumed(folder: RunFolder) -> Counter:
    """(task, candidate) -> how often it was consumed: trained on, filtered or without signal."""
    files = [folder.step_file("rollouts", step) for step in folder.steps_of("rollouts")]
    rows = (row for file in files for row in read_jsonl(file))
    return Counter((row["task"], row["candidate"]) for row in rows)


def left_behind(marks: Path) -> list[str]:
    """The actors that still live some seconds after the end."""
    processes = []
    for mark in marks.iterdir():
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append((mark.name, psutil.Process(int(mark.suffix[1:]))))
    psutil.wait_procs([process for _, process in processes], timeout=20)
    return [name for name, process in processes if process.is_running()]


if __name__ == "__main__":
    main()

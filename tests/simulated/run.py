"""What runs the real trainer over simulated actors and learners, in Ray processes of their own."""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unslothrl.cluster.base import Builders
from unslothrl.config.options import Config
from unslothrl.records import Task
from unslothrl.runs.resolve import resolve
from unslothrl.tracking.run_folder import RunFolder

FOLDER = Path(__file__).parents[1]  # that Ray's processes import this from
FLAGS = {
    "model": "embedded",
    "dataset": "embedded",
    "engine": "transformers",
    "backend": "peft",
    "learner": "grpo",
    "learner_chunk_size": 0,
    "eval_every": 0,
    "save_every": 10_000,
    "fit": "off",
}
PROMPT_TOKENS = 64


class Problems:
    """Tasks "0", "1", ... without end."""

    def draw(
        self, position: int, count: int, between: Callable[[], None] = lambda: None
    ) -> tuple[list[Task], int]:
        numbers = range(position, position + count)
        return [problem(number) for number in numbers], position + count


def problem(number: int) -> Task:
    ids = tuple(300 + (number + i) % 1000 for i in range(PROMPT_TOKENS))
    return Task(str(number), f"problem {number}", "", f"problem {number}", ids)


class Steps:
    """A terminal that keeps the time of each step, and calls `after` with its number."""

    def __init__(self, after: Callable[[int], None] = lambda step: None):
        self.after = after
        self.began = 0.0
        self.at: list[float] = []  # seconds from the beginning to the end of each step
        self.notes: list[str] = []

    def begin(self) -> None:
        self.began = time.perf_counter()

    @property
    def steps(self) -> list[float]:
        """Seconds of each step."""
        return [end - begin for begin, end in itertools.pairwise([0.0, *self.at])]

    def step(self, metrics: Mapping[str, Any], step: int, total_steps: int) -> None:
        self.at.append(time.perf_counter() - self.began)
        self.after(step)

    def note(self, line: str) -> None:
        self.notes.append(line)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None  # what else a terminal shows


def config_of(flags: Mapping[str, Any]) -> Config:
    return resolve({**FLAGS, **flags}).config


def builders(simulation: Any) -> Builders:
    """What builds the processes of a `Simulation`, or of what has its two methods."""
    return Builders(simulation.build_actor, simulation.build_learner)


def prepare_workers(folder: Path) -> None:
    """Has Ray's processes import from `folder` as well, and run at this process's priority: their
    own, 15 lower, lets everything else on a shared machine stall them for seconds."""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112, as Ray reads it
    already = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(folder), *already]))


def rows(folder: RunFolder, after: int = 0) -> list[dict[str, Any]]:
    """All rollouts of a run, of the steps after `after`."""
    later = (step for step in folder.steps_of("rollouts") if step > after)
    return [row for step in later for row in folder.read_rollouts(step)]


def consumed(folder: RunFolder) -> Counter:
    """(task, candidate) -> how often it was consumed: trained on, filtered or without signal."""
    return Counter((row["task"], row["candidate"]) for row in rows(folder))

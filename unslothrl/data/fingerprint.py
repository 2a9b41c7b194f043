"""What tells two data sets apart: a resumed run must train on the one that it began with."""

import hashlib
from collections.abc import Iterable

import numpy as np

from unslothrl.data.tasks import Data, EndlessTasks, FiniteTasks, LazyTasks
from unslothrl.errors import UserError
from unslothrl.records import Task

PICKED = 4_096  # tasks of a set that is rendered as it is used, evenly spaced
TRAIN = "train"

Fingerprints = dict[str, str]
"""Of "train" and each evaluation set, by its name: "60 problems, 8f3a..."."""


def of(data: Data) -> Fingerprints:
    found = {f"eval/{name}": of_tasks(len(tasks), tasks) for name, tasks in data.evals.items()}
    return {TRAIN: of_train(data.train), **found}


def of_train(train: FiniteTasks | EndlessTasks) -> str:
    """By all tasks, or some of each part of a set that is rendered as it is used."""
    if isinstance(train, EndlessTasks):
        return "problems without end"
    count = len(train.tasks)
    places: Iterable[int] = range(count)
    if isinstance(train.tasks, LazyTasks):
        places = np.unique(np.linspace(0, count - 1, PICKED, dtype=np.int64))
    return of_tasks(count, (train.tasks[int(index)] for index in places))


def of_tasks(count: int, tasks: Iterable[Task | None]) -> str:
    """By what identifies a problem: its id, its text and its answer."""
    digest = hashlib.sha256()
    for task in tasks:
        parts = ("", "", "") if task is None else (task.id, task.problem, task.answer)
        for part in parts:
            text = part.encode("utf-8", "surrogatepass")
            digest.update(len(text).to_bytes(8, "little") + text)
    return f"{count} problems, {digest.hexdigest()[:16]}"


def check(before: Fingerprints, now: Fingerprints, dataset: str) -> list[str]:
    """Notes on evaluation sets that have changed. UserError where the training set has: a position
    in it would mean other problems."""
    was, is_now = before.get(TRAIN), now[TRAIN]
    if was is not None and was != is_now:
        raise UserError(
            f"dataset {dataset} is not what the run was trained on ({was}; now {is_now}): restore "
            "it, or start a new run with --adapter"
        )
    return [
        f"evaluation set {name.removeprefix('eval/')} is not as it was ({before[name]}; now "
        f"{now[name]}): do not compare its figures with those before"
        for name in sorted(before.keys() & now.keys() - {TRAIN})
        if before[name] != now[name]
    ]

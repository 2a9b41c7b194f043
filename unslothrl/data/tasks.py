"""The tasks of a run: an order of training tasks that depends on the seed alone, and eval sets.

Which task stands at a position is a function of the seed, so a resumed run sees what an
uninterrupted one would have seen.
"""

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from unslothrl.data import formats, prompts, sources
from unslothrl.embedded import task as arithmetic
from unslothrl.errors import UserError
from unslothrl.types import Task, seed_of

Rows = list[tuple[str, str]]  # (problem, gold answer)
ENDLESS_PATIENCE = 1000  # rows of an endless source that may be too long before it is given up


@dataclass(frozen=True)
class Renderer:
    """Turns rows into tasks; prompts over `max_prompt_tokens` are dropped, never cut."""

    tokenizer: object
    system_prompt: str
    max_prompt_tokens: int

    def tasks(self, name: str, rows: Iterable[dict]) -> tuple[list[Task], list[int]]:
        """-> (tasks whose prompt fits, prompt lengths of those dropped)."""
        read = [formats.read_row(row, f"{name} row {i}") for i, row in enumerate(rows, start=1)]
        return self.render(name, read)

    def render(self, name: str, read: Rows) -> tuple[list[Task], list[int]]:
        """The same from (problem, answer) pairs."""
        texts = [prompts.render(self.tokenizer, problem, self.system_prompt) for problem, _ in read]
        kept, dropped = [], []
        ids = prompts.tokenise(self.tokenizer, texts)
        for i, ((problem, answer), text, tokens) in enumerate(zip(read, texts, ids, strict=True)):
            if len(tokens) > self.max_prompt_tokens:
                dropped.append(len(tokens))
            else:
                kept.append(Task(f"{name}/{i}", problem, answer, text, tuple(tokens)))
        return kept, dropped


class FiniteTasks:
    """A list of tasks, gone through once an episode in an order of its own."""

    def __init__(self, tasks: list[Task], seed: int):
        self.tasks, self.seed = tasks, seed

    def steps_per_episode(self, batch_size: int) -> int:
        return -(-len(self.tasks) // batch_size)

    def draw(self, position: int, count: int) -> list[Task]:
        """Up to `count` tasks from `position` on, at least one; never across an episode's end."""
        episode, index = divmod(position, len(self.tasks))
        order = list(range(len(self.tasks)))
        random.Random(seed_of(self.seed, "episode", episode)).shuffle(order)
        return [self.tasks[i] for i in order[index : index + count]]


class EndlessTasks:
    """The embedded generator: every position has a problem of its own."""

    def __init__(self, renderer: Renderer, seed: int):
        self.renderer, self.seed = renderer, seed

    def draw(self, position: int, count: int) -> list[Task]:
        """The `count` tasks from `position` on."""
        return [self._task(position + i) for i in range(count)]

    def _task(self, position: int) -> Task:
        name = f"{sources.EMBEDDED}/train/{position}"
        rows = arithmetic.problems("train", seed_of(self.seed, "train", position))
        dropped: list[int] = []
        for row in itertools.islice(rows, ENDLESS_PATIENCE):
            kept, lengths = self.renderer.tasks(name, [row])
            if kept:
                return kept[0]
            dropped += lengths
        return raise_all_dropped(name, dropped, self.renderer.max_prompt_tokens)


def raise_all_dropped(name: str, dropped: list[int], limit: int) -> NoReturn:
    raise UserError(
        f"max_prompt_tokens {limit}: all {len(dropped)} prompts of {name} are longer (the shortest "
        f"has {min(dropped)} tokens): set --max_prompt_tokens {max(dropped)} to keep every one"
    )


@dataclass(frozen=True)
class Data:
    """What a run trains and is evaluated on."""

    train: FiniteTasks | EndlessTasks
    eval_name: str
    eval: list[Task]
    dropped_prompts: int


def load(config, tokenizer) -> Data:
    """The data of a run as `config` asks for it. Raises UserError."""
    renderer = Renderer(tokenizer, system_prompt_of(config), config.max_prompt_tokens)
    held_out: Rows = []
    dropped = 0
    if config.dataset == sources.EMBEDDED:
        train: FiniteTasks | EndlessTasks = EndlessTasks(renderer, config.seed)
        train.draw(0, 1)  # says now if no prompt fits
    else:
        rows, held_out = split(config)
        tasks, lengths = renderer.render(name_of(config.dataset), rows)
        if not tasks:
            raise_all_dropped(config.dataset, lengths, config.max_prompt_tokens)
        train, dropped = FiniteTasks(tasks, config.seed), len(lengths)
    name, tasks, eval_dropped = _eval_tasks(config, renderer, held_out)
    return Data(train, name, tasks, dropped + eval_dropped)


def name_of(source: str) -> str:
    """What a source is called, wherever it lies: seeds hang on it."""
    return Path(source).name if sources.is_local(source) else source


def system_prompt_of(config) -> str:
    """The user's own; else none for the embedded problems and the think-and-answer one."""
    if config.system_prompt is not None:
        return config.system_prompt
    return "" if config.dataset == sources.EMBEDDED else prompts.SYSTEM_PROMPT


def split(config) -> tuple[Rows, Rows]:
    """-> (training problems, held-out problems), disjoint even where a problem is repeated.

    A data set with a train and a test split keeps them; one with a single split has a seeded share
    held out, unless `--eval_dataset` names another source.
    """
    splits = {
        name: [formats.read_row(row, f"{config.dataset} row {i}") for i, row in enumerate(rows, 1)]
        for name, rows in sources.load_splits(config.dataset).items()
    }
    test = splits.get("test") or splits.get("validation")
    if "train" in splits and test:
        return splits["train"], test
    rows = splits.get("train") or next(iter(splits.values()), [])
    if not rows:
        raise UserError(f"dataset {config.dataset}: it is empty: give one with at least 2 rows")
    if config.eval_dataset is not None:
        return rows, []
    problems = list(dict.fromkeys(problem for problem, _ in rows))
    count = max(1, round(config.holdout * len(problems)))
    if count >= len(problems):
        raise UserError(
            f"dataset {config.dataset}: {len(problems)} different problems leave nothing to train "
            f"on when {count} are held out: give more, or --eval_dataset"
        )
    held_out = set(random.Random(seed_of(config.seed, "held out")).sample(problems, count))
    return (
        [row for row in rows if row[0] not in held_out],
        [row for row in rows if row[0] in held_out],
    )


def _eval_tasks(config, renderer: Renderer, held_out: Rows) -> tuple[str, list[Task], int]:
    """-> (name, at most `eval_problems` tasks, how many prompts were too long)."""
    source = config.eval_dataset or config.dataset
    name = "held_out" if config.eval_dataset is None else Path(source).name.split(".")[0]
    if source == sources.EMBEDDED:
        # The seed is the set's, not the run's: every run is measured on the same problems.
        problems = arithmetic.problems("test", 0)
        rows = list(itertools.islice(problems, config.eval_problems or 200))
        tasks, lengths = renderer.tasks(f"eval/{name}", rows)
    elif config.eval_dataset is not None:
        splits = sources.load_splits(source)
        rows = splits.get("test") or splits.get("validation") or next(iter(splits.values()))
        tasks, lengths = renderer.tasks(f"eval/{name}", rows)
    else:
        tasks, lengths = renderer.render(f"eval/{name}", held_out)
    if not tasks:
        raise_all_dropped(f"the eval set {name}", lengths, config.max_prompt_tokens)
    if config.eval_problems and len(tasks) > config.eval_problems:
        tasks = random.Random(seed_of(0, "eval")).sample(tasks, config.eval_problems)
    return name, tasks, len(lengths)

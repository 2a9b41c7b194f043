"""The tasks of a run: an order of training tasks that depends on the seed alone, and eval sets.

Which task stands at a position is a function of the seed, so a resumed run sees what an
uninterrupted one would have seen. Up to `MOST_EAGER` rows are rendered before the run begins; of
more, each is rendered when it is drawn.
"""

import dataclasses
import functools
import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from unslothrl.data import sources
from unslothrl.data.files import PickedRows, Rows
from unslothrl.data.formats import Columns, Reader, UnusableRow, attempt, value_of
from unslothrl.data.rendering import Renderer, Skipped, check_usable, numbered, plain
from unslothrl.embedded import EMBEDDED
from unslothrl.embedded import task as arithmetic
from unslothrl.errors import UserError
from unslothrl.records import Task, seed_of

FEW = 20  # problems: of 5 no difference can have p < 0.05
MOST_EAGER = 50_000  # rows
PROBED = 1_000  # rows of a larger set that are rendered before the run, to see whether they can be
MOST_SKIPPED = 1_000  # embedded problems in a row that may be too long
EMBEDDED_EVAL = 200  # problems, where eval_problems does not say


@dataclass(frozen=True)
class DataOptions:
    """Sources, and how their rows become tasks."""

    dataset: str  # a source, see `sources`
    holdout: float  # share held out where the data set has no test split
    eval_problems: int  # of each eval set, at most; 0: all
    max_prompt_tokens: int  # tasks with longer prompts are left out
    seed: int  # of the order, and of what is held out
    eval_dataset: tuple[str, ...] = ()  # sources, NAME=SOURCE or JSON maps of both
    reader: Reader = field(default_factory=Reader)  # of training rows
    system_prompt: str = ""  # of rows that have none
    replaces: bool = False  # it also takes the place of the rows' own


class LazyTasks:
    """Tasks of rows that are rendered when they are asked for; None where one is not used."""

    def __init__(self, name: str, rows: Rows, renderer: Renderer):
        self.name, self.rows, self.renderer = name, rows, renderer

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Task | None:
        row = [(index + 1, self.rows[index])]
        return next(self.renderer.tasks(self.name, row, Skipped()), None)

    def problems(self) -> Iterator[str]:
        """Of every row that can be read."""
        for _, row in numbered(self.rows):
            turns = attempt(self.renderer.reader.prompt, row)
            if not isinstance(turns, UnusableRow):
                yield turns[-1][1]


class FiniteTasks:
    """A list of tasks, gone through once an episode in an order of its own."""

    def __init__(self, tasks: Sequence[Task] | LazyTasks, seed: int):
        self.tasks, self.seed = tasks, seed

    def steps_per_episode(self, batch_size: int) -> int:
        return -(-len(self.tasks) // batch_size)

    def draw(self, position: int, count: int) -> tuple[list[Task], int]:
        """-> (up to `count` tasks from `position` on, at least one, never across an episode's end;
        the position after them). UserError where none can be used."""
        for _ in range(2):
            episode, index = divmod(position, len(self.tasks))
            order = order_of(self.seed, episode, len(self.tasks))
            drawn: list[Task] = []
            while index < len(order) and len(drawn) < count:
                task = self.tasks[int(order[index])]
                index, position = index + 1, position + 1
                if task is not None:
                    drawn.append(task)
            if drawn:
                return drawn, position
        raise UserError("dataset: no row of a whole episode can be used: see unslothrl data SOURCE")


@functools.lru_cache(maxsize=1)
def order_of(seed: int, episode: int, count: int) -> np.ndarray:
    """The indices of `count` tasks in the order of an episode, [tasks]."""
    # RandomState's stream is the same in every version of NumPy.
    shuffled = np.arange(count, dtype=np.uint32)
    np.random.RandomState(seed_of(seed, "episode", episode) % 2**32).shuffle(shuffled)
    return shuffled


class EndlessTasks:
    """The embedded generator: every position has a problem of its own."""

    def __init__(self, renderer: Renderer, seed: int):
        self.renderer, self.seed = renderer, seed

    def draw(self, position: int, count: int) -> tuple[list[Task], int]:
        """-> (`count` tasks from `position` on, the position after)."""
        return [self._task(position + i) for i in range(count)], position + count

    def _task(self, position: int) -> Task:
        rows = arithmetic.problems("train", seed_of(self.seed, "train", position))
        skipped = Skipped()
        for row in itertools.islice(rows, MOST_SKIPPED):
            for task in self.renderer.tasks(f"{EMBEDDED}/train/{position}", [(1, row)], skipped):
                return task
        check_usable(EMBEDDED, skipped, 0, self.renderer.max_prompt_tokens)
        raise AssertionError("no task, and no reason for it")


@dataclass(frozen=True)
class Data:
    """What a run trains and is evaluated on."""

    train: FiniteTasks | EndlessTasks
    evals: dict[str, list[Task]]  # by the name of the set
    notes: tuple[str, ...] = ()  # on rows that are not used


def load(options: DataOptions, tokenizer) -> Data:
    """The data of a run. Raises UserError."""
    renderer = renderer_of(options, tokenizer)
    held_out: Rows = []
    notes: list[str] = []
    if options.dataset == EMBEDDED:
        train: FiniteTasks | EndlessTasks = EndlessTasks(renderer, options.seed)
        train.draw(0, 1)  # raises now if no prompt fits
    else:
        name, limit = sources.parse(options.dataset).label, options.max_prompt_tokens
        rows, held_out = sources.split(options, options.reader.prompt)
        skipped = Skipped(source=rows)
        if len(rows) <= MOST_EAGER:
            tasks: Sequence[Task] | LazyTasks = list(renderer.tasks(name, numbered(rows), skipped))
            kept = len(tasks)
        else:
            picked = np.random.RandomState(0).choice(len(rows), PROBED, replace=False)
            probed = ((i + 1, rows[int(i)]) for i in picked)
            kept = sum(1 for _ in renderer.tasks(name, probed, skipped))
            tasks = LazyTasks(name, rows, renderer)
        check_usable(f"dataset {name}", skipped, kept, limit)
        train = FiniteTasks(tasks, options.seed)
        notes += skipped.notes(name, limit)
    evals, more = evals_of(options, renderer, held_out)
    if isinstance(train, FiniteTasks):
        more += notes_on_repeated(train, evals)
    return Data(train, evals, tuple(notes + more))


def load_evals(options: DataOptions, tokenizer) -> tuple[dict[str, list[Task]], list[str]]:
    """`evals_of` a run, without what it trains on. Raises UserError."""
    held_out: Rows = []
    names_held_out = None in sources.eval_sources(options.eval_dataset).values()
    if names_held_out and options.dataset != EMBEDDED:
        _, held_out = sources.split(options, options.reader.prompt)
    return evals_of(options, renderer_of(options, tokenizer), held_out)


def evals_of(
    options: DataOptions, renderer: Renderer, held_out: Rows
) -> tuple[dict[str, list[Task]], list[str]]:
    """-> (the tasks of each set, notes on rows that are not used)."""
    evals, notes = {}, []
    for name, text in sources.eval_sources(options.eval_dataset).items():
        rows, columns = eval_rows(options, text, held_out)
        reader = dataclasses.replace(renderer.reader, columns=columns)
        of_set = dataclasses.replace(renderer, reader=reader)
        most = options.eval_problems or len(rows)
        if len(rows) > MOST_EAGER and most < len(rows):  # twice as many, as some may be skipped
            count = min(2 * most, len(rows))
            picked = np.random.RandomState(0).choice(len(rows), count, replace=False)
            rows = PickedRows(rows, np.sort(picked))
        skipped, title, limit = Skipped(source=rows), f"eval set {name}", options.max_prompt_tokens
        found = list(of_set.tasks(f"eval/{name}", numbered(rows), skipped))
        check_usable(title, skipped, len(found), limit, text or options.dataset)
        if len(found) > most:
            found = random.Random(seed_of(0, "eval")).sample(found, most)
        evals[name] = found
        if len(found) < min(FEW, most):
            notes.append(
                f"eval set {name}: {len(found)} problems are too few to tell a change from chance: "
                "set a larger --holdout, or --eval_dataset"
            )
        notes += skipped.notes(title, limit)
    return evals, notes


def renderer_of(options: DataOptions, tokenizer) -> Renderer:
    return Renderer(
        tokenizer,
        options.system_prompt,
        options.max_prompt_tokens,
        options.replaces,
        options.reader,
    )


def notes_on_repeated(train: FiniteTasks, evals: Mapping[str, Sequence[Task]]) -> list[str]:
    """A warning for each eval set with problems that are also trained on, by their `plain` text."""
    asked = {plain(task.problem) for of_set in evals.values() for task in of_set}
    drawn = train.tasks
    problems = drawn.problems() if isinstance(drawn, LazyTasks) else (t.problem for t in drawn)
    trained = asked.intersection(map(plain, problems))
    counts = {name: sum(plain(task.problem) in trained for task in evals[name]) for name in evals}
    return [
        f"warning: {count} of {len(evals[name])} problems of eval set {name} are also trained on: "
        "its figures say little about new problems"
        for name, count in counts.items()
        if count
    ]


def eval_rows(options: DataOptions, text: str | None, held_out: Rows) -> tuple[Rows, Columns]:
    """-> (the rows of an eval set, None: of what is held out; its columns, those that are named for
    the training set as far as it has them). UserError."""
    columns = options.reader.columns
    if (text or options.dataset) == EMBEDDED:
        # The seed is the set's, not the run's: every run is measured on the same problems.
        problems = arithmetic.problems("test", 0)
        rows: Rows = list(itertools.islice(problems, options.eval_problems or EMBEDDED_EVAL))
    elif text is None:
        rows = held_out
    else:
        by_split = sources.load_splits(sources.parse(text))
        rows = by_split[sources.test_of(by_split) or sources.train_of(by_split)]
    if text is None or not len(rows):
        return rows, columns
    named = (columns.prompt, columns.answer)
    return rows, Columns(*(name if name and value_of(rows[0], name) is not None else None
                           for name in named))  # fmt: skip


# What tells two data sets apart: a resumed run must train on the one that it began with

PICKED = 4_096  # tasks of a set that is rendered as it is used, evenly spaced
TRAIN = "train"

Fingerprints = dict[str, str]
"""Of "train" and each evaluation set, by its name: "60 problems, 8f3a..."."""


def fingerprints_of(data: Data) -> Fingerprints:
    """By all tasks, or some of each part of a set that is rendered as it is used."""
    evals = {f"eval/{name}": print_of_tasks(len(of), of) for name, of in data.evals.items()}
    if isinstance(data.train, EndlessTasks):
        return {TRAIN: "problems without end", **evals}
    tasks = data.train.tasks
    places: Iterable[int] = range(len(tasks))
    if isinstance(tasks, LazyTasks):
        places = np.unique(np.linspace(0, len(tasks) - 1, PICKED, dtype=np.int64))
    return {TRAIN: print_of_tasks(len(tasks), (tasks[int(i)] for i in places)), **evals}


def print_of_tasks(count: int, tasks: Iterable[Task | None]) -> str:
    """By what identifies a problem: its id, its text and its answer."""
    digest = hashlib.sha256()
    for task in tasks:
        parts = ("", "", "") if task is None else (task.id, task.problem, task.answer)
        for part in parts:
            text = part.encode("utf-8", "surrogatepass")
            digest.update(len(text).to_bytes(8, "little") + text)
    return f"{count} problems, {digest.hexdigest()[:16]}"


def check_fingerprints(before: Fingerprints, now: Fingerprints, dataset: str) -> list[str]:
    """Notes on evaluation sets that have changed. UserError where the training set has."""
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

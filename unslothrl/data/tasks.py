"""The tasks of a run: an order of training tasks that depends on the seed alone, and eval sets.

Which task stands at a position is a function of the seed, so a resumed run sees what an
uninterrupted one would have seen. Up to `AT_ONCE` rows are rendered before the run begins; of more,
each is rendered when it is drawn.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from unslothrl import rewards
from unslothrl.data import formats, prompts, sources, splits
from unslothrl.data.formats import Columns, Record, Unusable
from unslothrl.data.rows import PickedRows, Rows, number_of
from unslothrl.embedded import EMBEDDED
from unslothrl.embedded import task as arithmetic
from unslothrl.errors import UserError
from unslothrl.types import Task, seed_of

AT_ONCE = 50_000  # rows
TRIED = 1_000  # rows of a larger set that are looked at before the run
ENDLESS_PATIENCE = 1_000  # rows in a row that cannot be used before a source is given up
BATCH = 1_000  # prompts tokenised at once
EMBEDDED_EVAL = 200  # problems, where eval_problems does not say


@dataclass
class Left:
    """Rows that are not used: how many, and why."""

    rows: int = 0  # that were looked at
    too_long: list[int] = field(default_factory=list)  # lengths in tokens
    unusable: dict[str, list[int]] = field(default_factory=dict)  # reason -> [count, first row]
    source: Rows | None = None  # whose rows the numbers are of, which may be a share of a file's

    def add(self, reason: str, row: int) -> None:
        if self.source is not None:
            row = number_of(self.source, row - 1)
        self.unusable.setdefault(reason, [0, row])[0] += 1

    @property
    def broken(self) -> int:
        return sum(count for count, _ in self.unusable.values())

    def lines(self, limit: int) -> list[str]:
        """A number of rows, and why."""
        found = [f"{count} {why} (row {row})" for why, (count, row) in self.unusable.items()]
        if self.too_long:
            longest = max(self.too_long)
            found.append(
                f"{len(self.too_long)} longer than {limit} tokens (the longest: {longest})"
            )
        return found


@dataclass(frozen=True)
class Reader:
    """Turns rows into records that have what the rewards need."""

    columns: Columns = field(default_factory=Columns)
    needs: frozenset[str] = frozenset()  # of "answer", "tests", "numbers"

    def record(self, row: Mapping) -> Record:
        """Raises Unusable, also for a row that lacks what is needed."""
        record = formats.read(row, self.columns)
        empty = [name for name in formats.ANSWERS if name in row and row[name] is None]
        if "answer" in self.needs and not record.answers and empty:
            raise Unusable(f"column {' and '.join(empty)} is empty")
        if "answer" in self.needs and not record.answers:
            raise Unusable(
                f"no column {' or '.join(formats.ANSWERS)}; it has {formats.known(row)}: "
                "set --answer_column"
            )
        extra = dict(record.extra)
        if len(record.answers) > 1:
            extra["answers"] = list(record.answers)
        if "tests" in self.needs:
            extra = {name: extra[name] for name in extra if name not in formats.TESTS}
            extra["tests"] = demand(formats.tests_of(row), "no tests", formats.TESTS)
        if "numbers" in self.needs:
            extra |= demand(formats.numbers_of(row), "no numbers and target", formats.NUMBERS)
        return dataclasses.replace(record, extra=extra)


def reader_of(chosen: Sequence[rewards.Chosen], columns: Columns) -> Reader:
    return Reader(columns, frozenset[str]().union(*(one.needs for one in chosen)))


@dataclass(frozen=True)
class Renderer:
    """Turns rows into tasks; prompts over `max_prompt_tokens` are dropped, never cut."""

    tokenizer: object
    system_prompt: str
    max_prompt_tokens: int
    replaces: bool = False  # whether the system prompt replaces a row's own
    reader: Reader = field(default_factory=Reader)

    def text(self, record: Record) -> str:
        return prompts.render(self.tokenizer, record.messages, self.system_prompt, self.replaces)

    def tasks(self, name: str, rows: Iterable[tuple[int, Mapping]], left: Left) -> Iterator[Task]:
        """The tasks of (number, row) pairs; what is not used is counted in `left`."""
        for part in batches(rows, BATCH):
            kept: list[tuple[int, Record, str]] = []
            for number, row in part:
                left.rows += 1
                try:
                    record = self.reader.record(row)
                    kept.append((number, record, self.text(record)))
                except Unusable as error:
                    left.add(str(error), number)
            ids = prompts.tokenise(self.tokenizer, [text for _, _, text in kept])
            for (number, record, text), tokens in zip(kept, ids, strict=True):
                if len(tokens) > self.max_prompt_tokens:
                    left.too_long.append(len(tokens))
                else:
                    yield task_of(f"{name}/{number - 1}", record, text, tokens)


def batches(items: Iterable, size: int) -> Iterator[list]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def demand(found: dict | None, what: str, columns: Sequence[str]) -> dict:
    if found is None:
        raise Unusable(f"{what}, in no column of {', '.join(columns)}: the reward takes them")
    return found


def task_of(name: str, record: Record, prompt: str, tokens: Sequence[int]) -> Task:
    return Task(name, record.problem, record.answer, prompt, tuple(tokens), record.extra)


def numbered(rows: Rows) -> Iterator[tuple[int, Mapping]]:
    for index in range(len(rows)):
        yield index + 1, rows[index]


class LazyTasks:
    """Tasks of rows that are rendered when they are asked for; None where one is not used."""

    def __init__(self, name: str, rows: Rows, renderer: Renderer):
        self.name, self.rows, self.renderer = name, rows, renderer

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Task | None:
        row = [(index + 1, self.rows[index])]
        return next(self.renderer.tasks(self.name, row, Left()), None)


def nothing() -> None:
    """What is called between two tasks where nobody asks."""


class FiniteTasks:
    """A list of tasks, gone through once an episode in an order of its own."""

    def __init__(self, tasks: Sequence[Task] | LazyTasks, seed: int):
        self.tasks, self.seed = tasks, seed
        self.order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))  # of which episode

    def steps_per_episode(self, batch_size: int) -> int:
        return -(-len(self.tasks) // batch_size)

    def order_of(self, episode: int) -> np.ndarray:
        """The tasks' indices in the order of an episode."""
        if self.order[0] != episode:
            seed = seed_of(self.seed, "episode", episode) % 2**32
            # RandomState's stream is the same in every version of NumPy.
            shuffled = np.arange(len(self.tasks), dtype=np.uint32)
            np.random.RandomState(seed).shuffle(shuffled)
            self.order = (episode, shuffled)
        return self.order[1]

    def draw(
        self, position: int, count: int, between: Callable[[], None] = nothing
    ) -> tuple[list[Task], int]:
        """-> (up to `count` tasks from `position` on, at least one, never across an episode's end;
        the position after them). `between` is called before each, and may raise. UserError where
        none can be used."""
        for _ in range(2):
            episode, index = divmod(position, len(self.tasks))
            order = self.order_of(episode)
            found: list[Task] = []
            while index < len(order) and len(found) < count:
                between()
                task = self.tasks[int(order[index])]
                index, position = index + 1, position + 1
                if task is not None:
                    found.append(task)
            if found:
                return found, position
        raise UserError("dataset: no row of a whole episode can be used: see unslothrl data SOURCE")


class EndlessTasks:
    """The embedded generator: every position has a problem of its own."""

    def __init__(self, renderer: Renderer, seed: int):
        self.renderer, self.seed = renderer, seed

    def draw(
        self, position: int, count: int, between: Callable[[], None] = nothing
    ) -> tuple[list[Task], int]:
        """-> (the `count` tasks from `position` on, the position after them). `between` is called
        before each, and may raise."""
        found = []
        for i in range(count):
            between()
            found.append(self._task(position + i))
        return found, position + count

    def _task(self, position: int) -> Task:
        rows = arithmetic.problems("train", seed_of(self.seed, "train", position))
        some = itertools.islice(rows, ENDLESS_PATIENCE)
        left = Left()
        for row in some:
            for task in self.renderer.tasks(f"{EMBEDDED}/train/{position}", [(1, row)], left):
                return task
        check_usable(EMBEDDED, left, 0, self.renderer)
        raise AssertionError("no task, and no reason for it")


def raise_all_dropped(name: str, left: Left, limit: int) -> NoReturn:
    dropped = left.too_long
    raise UserError(
        f"max_prompt_tokens {limit}: all {len(dropped)} prompts of {name} are longer (the shortest "
        f"has {min(dropped)} tokens): set --max_prompt_tokens {max(dropped)} to keep every one"
    )


@dataclass(frozen=True)
class Data:
    """What a run trains and is evaluated on."""

    train: FiniteTasks | EndlessTasks
    evals: dict[str, list[Task]]  # by the name of the set
    notes: tuple[str, ...] = ()  # what was left out


def load(config, tokenizer) -> Data:
    """The data of a run as `config` asks for it. Raises UserError."""
    renderer = renderer_of(config, tokenizer)
    held_out: Rows = []
    notes: list[str] = []
    source = sources.parse(config.dataset)
    if config.dataset == EMBEDDED:
        train: FiniteTasks | EndlessTasks = EndlessTasks(renderer, config.seed)
        train.draw(0, 1)  # says now if no prompt fits
    else:
        rows, held_out = splits.split(config, source)
        items, left = rendered(source.label, rows, renderer)
        train = FiniteTasks(items, config.seed)
        notes += told(source.label, left, renderer)
    evals = {}
    for name, text in sources.eval_sources(config).items():
        tasks, left = eval_tasks(config, name, text, renderer, held_out)
        evals[name] = tasks
        notes += told(f"eval set {name}", left, renderer)
    return Data(train, evals, tuple(notes))


def renderer_of(config, tokenizer) -> Renderer:
    columns = Columns(config.prompt_column, config.answer_column)
    return Renderer(
        tokenizer,
        system_prompt_of(config),
        config.max_prompt_tokens,
        replaces=config.system_prompt is not None,
        reader=reader_of(
            rewards.choose(config.reward), columns if config.dataset != EMBEDDED else Columns()
        ),
    )


def system_prompt_of(config) -> str:
    """The user's own; else none for the embedded problems, and what the rewards ask for."""
    if config.system_prompt is not None:
        return config.system_prompt
    if config.dataset == EMBEDDED:
        return ""
    return next((one.prompt for one in rewards.choose(config.reward) if one.prompt), "")


def rendered(name: str, rows: Rows, renderer: Renderer) -> tuple[Sequence[Task] | LazyTasks, Left]:
    """-> (the tasks of all rows, what is left out; of a large set by a look at some of them)."""
    left = Left(source=rows)
    if len(rows) <= AT_ONCE:
        tasks: Sequence[Task] | LazyTasks = list(renderer.tasks(name, numbered(rows), left))
        check_usable(f"dataset {name}", left, len(tasks), renderer)
        return tasks, left
    picked = np.random.RandomState(0).choice(len(rows), TRIED, replace=False)
    looked = sum(1 for _ in renderer.tasks(name, ((i + 1, rows[int(i)]) for i in picked), left))
    check_usable(f"dataset {name}", left, looked, renderer)
    return LazyTasks(name, rows, renderer), left


def check_usable(name: str, left: Left, kept: int, renderer: Renderer) -> None:
    """UserError where more than half of the rows cannot be used, or no prompt fits."""
    if left.broken > left.rows / 2:
        reason, (_, row) = max(left.unusable.items(), key=lambda item: item[1][0])
        of = f" ({left.broken} of {left.rows} rows cannot be used)" if left.rows > 1 else ""
        raise UserError(f"{name} row {row}: {reason}; fix or drop the row{of}")
    if not left.rows:
        raise UserError(f"{name}: it is empty: give one with rows")
    if not kept:
        raise_all_dropped(name, left, renderer.max_prompt_tokens)


def told(name: str, left: Left, renderer: Renderer) -> list[str]:
    limit = renderer.max_prompt_tokens
    return [f"{name}: of {left.rows} rows not used: {line}" for line in left.lines(limit)]


def those_it_has(rows: Rows, columns: Columns) -> Columns:
    """The columns named for the training set, as far as an eval set has them too."""
    first = rows[0] if len(rows) else {}
    names = (columns.prompt, columns.answer)
    return Columns(
        *(name if name and formats.find(first, name) is not None else None for name in names)
    )


def eval_tasks(
    config, name: str, text: str | None, renderer: Renderer, held_out: Rows
) -> tuple[list[Task], Left]:
    """-> (at most `eval_problems` tasks, what was left out)."""
    rows: Rows = held_out
    if (text or config.dataset) == EMBEDDED:
        # The seed is the set's, not the run's: every run is measured on the same problems.
        problems = arithmetic.problems("test", 0)
        rows = list(itertools.islice(problems, config.eval_problems or EMBEDDED_EVAL))
    elif text is not None:
        found = sources.load_splits(sources.parse(text))
        rows = found[sources.test_of(found) or sources.train_of(found)]
    if text is not None:
        columns = those_it_has(rows, renderer.reader.columns)
        reader = dataclasses.replace(renderer.reader, columns=columns)
        renderer = dataclasses.replace(renderer, reader=reader)
    most = config.eval_problems or len(rows)
    if len(rows) > AT_ONCE and most < len(rows):  # twice as many, for those that are not used
        picked = np.random.RandomState(0).choice(len(rows), min(2 * most, len(rows)), replace=False)
        rows = PickedRows(rows, np.sort(picked))
    left = Left(source=rows)
    tasks = list(renderer.tasks(f"eval/{name}", numbered(rows), left))
    check_usable(f"eval set {name}", left, len(tasks), renderer)
    if len(tasks) > most:
        tasks = random.Random(seed_of(0, "eval")).sample(tasks, most)
    return tasks, left

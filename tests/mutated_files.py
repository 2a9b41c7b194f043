"""Files and folders that are wrong in every way, as the commands read them: recipes, data files,
adapters, checkpoints and run folders.

A case is a function of its kind and number alone. It begins with something valid, and one to three
times bytes, a value, a line, the kind of a file or a folder is changed. `OUTSIDE`, beside the case,
is of the user's: whatever a link says, nothing may be changed there.
"""

import copy
import functools
import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mutated_runs
import mutations
from mutated_runs import OUTSIDE
from mutations import JSON, TEXTS, times

Build = Callable[[random.Random, Path], Path]


@dataclass(frozen=True)
class Case:
    kind: str
    number: int
    path: Path  # what the command is given
    folder: Path  # the case's own, with everything in it


def make(kind: str, number: int, folder: Path) -> Case:
    """Writes what the case needs into `folder`, which is its own."""
    draw = random.Random(f"mutated {kind} {number}")
    folder.mkdir(parents=True)
    (folder / OUTSIDE).mkdir()
    for name in ("step_000001.jsonl", "notes.txt", ".profile", "step_000009/mine.txt"):
        (folder / OUTSIDE / name).parent.mkdir(exist_ok=True)
        (folder / OUTSIDE / name).write_text("of the user's\n")
    return Case(kind, number, KINDS[kind](draw, folder), folder)


# Recipes and adapters: see `mutations`


def recipe(draw: random.Random, folder: Path) -> Path:
    _, path, *_ = mutations.recipe(draw, folder)
    if draw.random() < 0.1:
        mutated_runs.mutate_file(draw, path, folder)
    return path


def adapter(draw: random.Random, folder: Path) -> Path:
    if draw.random() < 0.8:
        made = mutations.mutated_adapter(draw, folder / "adapter")
    else:
        made = mutations.adapters.write(folder / "adapter")
        name = draw.choice((mutations.CONFIG_FILE, mutations.WEIGHTS_FILE))
        mutated_runs.mutate_file(draw, made / name, folder)
    if made.is_dir() and draw.random() < 0.5:
        use = mutations.adapter_use.Use("embedded", "x", None, 0.6, 0.95, 8)
        file = made / mutations.adapter_use.USE_FILE
        file.write_text(mutations.adapter_use.to_json(use))
        if draw.random() < 0.5:
            found = mutations.mutated_json(draw, json.loads(file.read_text()))
            file.write_text(json.dumps(found))
        elif draw.random() < 0.5:
            mutated_runs.mutate_file(draw, file, folder)
    return made


# Data files

ROWS = [
    {"problem": f"What is {i} + {i}?", "answer": str(2 * i), "completion": f"It is {2 * i}."}
    for i in range(1, 9)
]
KINDS_OF_DATA = ("jsonl", "json", "csv", "tsv", "parquet", "arrow", "jsonl.gz", "csv.gz")
TABLES = ("parquet", "arrow")
FIELDS = ("problem", "answer", "completion")


def data(draw: random.Random, folder: Path) -> Path:
    ending = draw.choice(KINDS_OF_DATA)
    path = folder / f"problems.{ending}"
    rows = json.loads(json.dumps(ROWS))
    if draw.random() < 0.4:
        for _ in times(draw):
            mutate_row(draw, rows)
    plain = ending.removesuffix(".gz")
    content = encoded(draw, plain, rows)
    if draw.random() < 0.7:
        path.write_bytes(content)
        for _ in times(draw):
            mutated_runs.mutate_file(draw, path, folder, is_text=plain not in TABLES)
        if mutated_runs.is_small(path):
            content = path.read_bytes()
        else:
            return path
    if ending.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
        if draw.random() < 0.4:
            content = mutated_runs.flipped(draw, content)
    path.write_bytes(content)
    if draw.random() < 0.1:  # a folder of files
        (folder / "set").mkdir()
        shutil.move(path, folder / "set" / draw.choice((path.name, f"train-0.{ending}")))
        if draw.random() < 0.5:
            mutations.odd_file(draw, folder / "set")
        return folder / "set"
    return path


def mutate_row(draw: random.Random, rows: list) -> None:
    at, how = draw.randrange(len(rows)), draw.randrange(6)
    row, name = rows[at], draw.choice(FIELDS)
    turns = ([{"role": "user", "content": "x"}], [{"role": 1}])
    value = copy.deepcopy(draw.choice((*JSON, *TEXTS, *turns, "\ud800")))  # may become a row
    if not isinstance(row, dict):
        return
    if how == 0:
        row.pop(name, None)
    elif how == 1:
        rows[at] = value
    elif how == 2:
        for each in rows:
            if isinstance(each, dict):
                each[name] = value
    elif how == 3:
        row[draw.choice(TEXTS)] = value
    else:
        row[name] = value


def encoded(draw: random.Random, ending: str, rows: list) -> bytes:
    """A file of that ending; as JSON where the rows fit into no table."""
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if ending == "jsonl":
        return lines
    if ending == "json":
        form = draw.randrange(3)
        whole = rows if form < 2 else {"data": rows, "version": 1}
        return json.dumps(whole, indent=form or None).encode()
    if ending in ("csv", "tsv"):
        separator = draw.choice((",", ";", "\t")) if ending == "csv" else "\t"
        cells = [[str(row.get(f, "")) for f in FIELDS] for row in rows if isinstance(row, dict)]
        text = "\n".join(separator.join(quoted(c) for c in line) for line in [FIELDS, *cells])
        return text.encode("utf-8", "replace") + b"\n"
    try:
        return table_bytes(ending, rows)
    except Exception:  # of pyarrow, for rows that are no table
        return lines


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if len(cell) % 3 == 0 else cell


def table_bytes(ending: str, rows: list) -> bytes:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(rows)
    sink = pyarrow.BufferOutputStream()
    if ending == "parquet":
        pyarrow.parquet.write_table(table, sink)
    else:
        with pyarrow.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)
    return sink.getvalue().to_pybytes()


# Runs


@functools.cache
def template() -> Path:
    """A whole run, made once in this process."""
    return mutated_runs.make_template()


def checkpoint(draw: random.Random, folder: Path) -> Path:
    run = shutil.copytree(template(), folder / "run")
    for _ in times(draw):
        mutated_runs.mutate_checkpoint(draw, run, folder)
    return run


def run(draw: random.Random, folder: Path) -> Path:
    made = shutil.copytree(template(), folder / "run")
    for _ in times(draw):
        mutated_runs.mutate_run(draw, made, folder)
    return made


KINDS: dict[str, Build] = {
    "recipe": recipe,
    "data": data,
    "adapter": adapter,
    "checkpoint": checkpoint,
    "run": run,
}


def words(case: Case) -> tuple[str, ...]:
    """The command that is given the case, as its number decides."""
    draw, path = random.Random(f"command {case.kind} {case.number}"), str(case.path)
    runs = str(case.folder / "runs")
    train = [*mutations.as_flags({**mutations.VALID, "output_dir": runs})]
    choices: dict[str, tuple[list[str], ...]] = {
        "recipe": ([f"--recipe={path}", f"--output_dir={runs}"],),
        "data": ([*train, f"--dataset={path}"], [*train, f"--eval_dataset={path}"],
                 ["data", path, "--model=embedded"], ["score", path, "--reward=accuracy"]),
        "adapter": ([*train, f"--adapter={path}"], ["ask", f"--adapter={path}", "What is 1 + 1?"],
                    ["export", "--to=adapter", f"--output={runs}", f"--adapter={path}"]),
        "checkpoint": ([f"--resume={path}"],),
        "run": ([f"--resume={path}"], ["report", path], ["report", str(case.folder)],
                ["bundle", path, f"--output={case.folder / 'x.zip'}"],
                ["export", "--to=adapter", f"--output={runs}", f"--adapter={path}"]),
    }  # fmt: skip
    return tuple(draw.choice(choices[case.kind]))


def clean(case: Case) -> None:
    mutations.clean(case.folder)
    assert not os.path.lexists(case.folder)

"""Recipes, flags, data files, adapters and run folders that are damaged, and the commands that read
them.

A case is a function of its kind and number alone. It begins with something valid, and one to three
times bytes, a value, a line or a file are changed.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import adapters
from stopped_run import VALID, as_flags, template

from unslothrl.config.options import OPTIONS
from unslothrl.weights import adapter_use

NUMBERS = ("0", "-1", "1", "7", "0.5", "1e-9", "1e308", "1e999", "nan", "9" * 40, "0x10", "1e", "")
TEXTS = (
    "", " ", "x", "~", ".", "/", "--", "a=b", "x" * 300, "é", "\x1b[31m", "a\nb", "%s", "{}",
    "null", "true", "embedded", "embedded[:5]", "none", "auto", "{", "'", '"', "accuracy=1e999",
    "boxed=-", "mine.py:f", "x.jsonl[5:1]", "x.jsonl@nosuch",
)  # fmt: skip
JSON = (
    None, True, 0, -1, 1, 513, 2**63, 1e308, float("nan"), "", "x", "16", "x" * 10_000, [], [None],
    ["q_proj", 3], {}, {"a": 1}, ["lm_head"], {"q_proj": 64},
)  # fmt: skip
ROWS = [
    {"problem": f"What is {i} + {i}?", "answer": str(2 * i), "completion": f"It is {2 * i}."}
    for i in range(1, 9)
]


def make(kind: str, number: int, folder: Path) -> list[str]:
    """Writes what the case needs into `folder`, which is its own. -> the words of its command"""
    draw = random.Random(f"{kind} {number}")
    folder.mkdir(parents=True)
    return list(map(str, KINDS[kind](draw, folder)))


def train(folder: Path, **options: object) -> list[str]:
    return as_flags({**VALID, "output_dir": folder / "runs", **options})


def flags(draw: random.Random, folder: Path) -> list:
    changed = {draw.choice(list(OPTIONS)): draw.choice((*NUMBERS, *TEXTS)) for _ in times(draw)}
    words = train(folder, **changed)
    if draw.random() < 0.2:
        at = draw.randrange(len(words))
        words[at] = draw.choice((words[at].upper(), words[at][1:], words[at].split("=")[0]))
    return words if draw.random() < 0.7 else ["plan", "--card=12", *words]


def recipe(draw: random.Random, folder: Path) -> list:
    lines = [f"{name} = {json.dumps(value)}" for name, value in VALID.items()]
    for _ in times(draw):
        name = draw.choice(list(OPTIONS))
        lines = [line for line in lines if not line.startswith(f"{name} ")]
        value = draw.choice((*NUMBERS, *map(json.dumps, (*TEXTS, [1], True))))
        lines.insert(draw.randrange(len(lines) + 1), f"{name} = {value}")
    path = folder / "recipe.toml"
    path.write_text("\n".join(lines))
    if draw.random() < 0.5:
        damage(draw, path)
    return [f"--recipe={path}", f"--output_dir={folder / 'runs'}"]


def data(draw: random.Random, folder: Path) -> list:
    ending = draw.choice(("jsonl", "json", "csv", "parquet"))
    path = folder / f"problems.{ending}"
    rows = [dict(row) for row in ROWS]
    if draw.random() < 0.4 and ending != "parquet":
        at = draw.randrange(len(rows))
        rows[at] = mutated(draw, rows[at])
    path.write_bytes(encoded(ending, rows))
    for _ in times(draw):
        damage(draw, path)
    commands = (
        train(folder, dataset=path),
        train(folder, eval_dataset=path),
        ["data", path, "--model=embedded"],
        ["score", path, "--reward=accuracy"],
    )
    return draw.choice(commands)


def encoded(ending: str, rows: list) -> bytes:
    if ending == "json":
        return json.dumps(rows).encode()
    if ending == "csv":
        cells = [list(ROWS[0]), *([str(value) for value in row.values()] for row in rows)]
        return "\n".join(",".join(line) for line in cells).encode()
    if ending == "parquet":
        import pyarrow
        import pyarrow.parquet

        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
        return sink.getvalue().to_pybytes()
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def adapter(draw: random.Random, folder: Path) -> list:
    path = adapters.write(folder / "adapter", draw.choice((None, mutated(draw, adapters.SETTINGS))))
    use = adapter_use.Use("embedded", "x", None, 0.6, 0.95, 8)
    (path / adapter_use.USE_FILE).write_text(adapter_use.to_json(use))
    for _ in times(draw):
        damage(draw, draw.choice(sorted(path.iterdir())))
    commands = (
        train(folder, adapter=path),
        ["ask", f"--adapter={path}", "What is 1 + 1?"],
        ["export", "--to=adapter", f"--output={folder / 'exported'}", f"--adapter={path}"],
    )
    return draw.choice(commands)


def run(draw: random.Random, folder: Path) -> list:
    path = shutil.copytree(template(), folder / "run")
    files = [path / name for name in ("config.toml", "run.json", "metrics.jsonl", "summary.json")]
    files += sorted((path / "adapters" / "v000004").iterdir())
    for _ in times(draw):
        damage(draw, draw.choice(files))
    commands = (
        [f"--resume={path}"],
        [f"--resume={path}", "--max_steps=8"],
        ["report", path],
        ["report", folder],
        ["export", "--to=adapter", f"--output={folder / 'exported'}", f"--adapter={path}"],
    )
    return draw.choice(commands)


def damaged_checkpoint(number: int, folder: Path) -> Path:
    """-> a run's folder in which files of its newest checkpoint are damaged."""
    draw = random.Random(f"checkpoint {number}")
    path = Path(shutil.copytree(template(), folder))
    for _ in times(draw):
        damage(draw, draw.choice(sorted((path / "checkpoints" / "step_000004").iterdir())))
    return path


KINDS: dict[str, Callable[[random.Random, Path], list]] = {
    "flags": flags,
    "recipe": recipe,
    "data": data,
    "adapter": adapter,
    "run": run,
}


def times(draw: random.Random) -> range:
    return range(draw.choice((1, 1, 1, 2, 3)))


def mutated(draw: random.Random, value: dict) -> dict:
    """An object of JSON's without a key, or with another value or key."""
    name, how = draw.choice(list(value)), draw.randrange(4)
    if how == 0:
        return {key: each for key, each in value.items() if key != name}
    key = draw.choice(("x", "", name.upper())) if how == 1 else name
    return {**value, key: draw.choice(JSON)}


def damage(draw: random.Random, path: Path) -> None:
    """Changes a file's bytes, or what of JSON is in it, or puts something else in its place."""
    if not path.is_file():
        return
    how = draw.randrange(10)
    if how == 0:
        path.unlink()
        if draw.random() < 0.5:
            path.mkdir()
    elif how < 4 and path.suffix in (".json", ".jsonl"):
        text = path.read_text(errors="surrogateescape")
        text = "\n".join(rewritten(draw, line) for line in text.split("\n"))
        path.write_text(text, errors="surrogateescape")
    else:
        path.write_bytes(mutated_bytes(draw, path.read_bytes()))


def rewritten(draw: random.Random, line: str) -> str:
    """A line of JSON, which is changed now and then."""
    try:
        value = json.loads(line)
    except ValueError:
        return line
    if not isinstance(value, dict) or not value or draw.random() < 0.5:
        return draw.choice((line, line, line, "[1]", ""))
    return json.dumps(mutated(draw, value))


def mutated_bytes(draw: random.Random, content: bytes) -> bytes:
    at = draw.randrange(len(content) + 1)
    end = draw.randrange(at, len(content) + 1)
    some = bytearray(content)
    for _ in range(draw.choice((1, 2, 50)) if some else 0):
        some[draw.randrange(len(some))] = draw.choice((0, 255, 0x20, draw.randrange(256)))
    new = draw.choice((b"\0", b"\xff\xfe", b"\n", b'"', b"x" * 99, b"[" * 500, b"9" * 99))
    return draw.choice(
        (b"", content[:at], content[at:], bytes(some), bytes(some), content[:at] + content[end:],
         content[:at] + new + content[at:], content * 2)
    )  # fmt: skip


def listing(folder: Path) -> dict[str, bytes | None]:
    """The content of each file below, None of a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }

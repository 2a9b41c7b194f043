"""The rollouts that the report's browser shows: a script for each step and each evaluation.

    <run>/report/step_000010.js    of rollouts/step_000010.jsonl
    <run>/report/eval_000010.js    of evals/step_000010.jsonl

A page that was opened from a disk may load scripts, but read no other file. A script has at most
`MOST_COMPLETIONS` completions and `MOST_BYTES`: of a larger step some prompts are shown, and long
texts are cut in the middle. It is pure ASCII, and its one statement hands a JSON value to the page.
Its first line, a comment, is what the page itself needs of it: see `Header`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from unslothrl.evaluation.estimates import estimate
from unslothrl.files import write_whole
from unslothrl.tracking.metrics import is_number, mean
from unslothrl.tracking.report import episodes
from unslothrl.tracking.report.episodes import cut_text
from unslothrl.tracking.run_folder import EVALS, ROLLOUTS, RunFolder, plain, read_jsonl

FOLDER = "report"  # in a run's folder
FORM = 1  # of a script; one of another form is written again
MOST_COMPLETIONS = 96
MOST_BYTES = 600_000
MOST_SCRIPT = 16 << 20  # bytes of one with its header
# Characters of a text, tokens of a completion: the first that keep to MOST_BYTES.
LENGTHS = ((6000, 1000), (1500, 300), (1500, 100), (400, 100), (100, 0), (0, 0))
LONGEST_NAME = 200  # characters of a task's id, an answer

ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))

Rows = Sequence[Mapping[str, Any]]
Length = tuple[int, int]


@dataclass(frozen=True)
class Tokens:
    """What is known of a completion's tokens, the first ones of a long one."""

    pieces: list[str]  # the text of each
    logprobs: list[float | None]  # the sampler's; None: not sampled
    gaps: list[float | None] | None = None  # learner - sampler; None: not compared
    advantages: list[float | None] | None = None  # None: the same for all
    left_out: int = 0  # tokens after these


@dataclass(frozen=True)
class SetFigures:
    """A set of an evaluation: mean, low and high of a figure over its problems."""

    name: str
    problems: int
    candidates: int
    pass_at_1: Sequence[float]
    best_of_n: Sequence[float]


@dataclass(frozen=True)
class Header:
    """What the page needs of a script."""

    source: tuple[int, int]  # size and time of the file that it was made of
    prompts: list[list[Any]] = field(default_factory=list)  # see `prompt_facts`, of those shown
    sets: list[SetFigures] = field(default_factory=list)  # of an evaluation, of all its problems
    traced: bool = False  # whether it has tokens
    form: int = FORM


def write_step(
    folder: RunFolder, step: int, rows: Rows, tokens: Mapping[int, Tokens] | None = None
) -> Path:
    """Writes the script of a step whose rollouts are `rows`; `tokens` by the number of a row."""
    return _write(folder, folder.rollouts_file(step), rows, tokens or {})


def delete_up_to(folder: RunFolder, step: int) -> None:
    """Deletes the rollouts of the steps up to `step`, with their scripts."""
    for earlier in folder.rollout_steps():
        if earlier <= step:
            source = folder.rollouts_file(earlier)
            (folder.path / FOLDER / f"{name_of(source)}.js").unlink(missing_ok=True)
            source.unlink(missing_ok=True)


def update(folder: RunFolder) -> dict[str, Header]:
    """Writes the scripts that are missing or older than their files, and deletes those whose file
    is gone. -> the headers by name, ascending. ValueError names a file that is damaged."""
    sources = {name_of(path): path for path in _sources(folder)}
    if (folder.path / FOLDER).is_symlink():  # whose files are not the run's
        raise ValueError(f"{folder.path / FOLDER} is a link: remove it")
    for script in (folder.path / FOLDER).glob("*.js"):
        if script.stem not in sources and script.stem.startswith(("step_", "eval_")):
            script.unlink(missing_ok=True)
    headers = {}
    for name, path in sources.items():
        with suppress(FileNotFoundError):  # a resume has deleted it since
            header = _current(folder, name, path)
            if header is not None:
                headers[name] = header
    return headers


def _current(folder: RunFolder, name: str, path: Path) -> Header | None:
    """The header of a file's script, which is written where it is missing or older."""
    header = read_header(folder, name)
    if header is not None and header.source == stamp(path):
        return header
    try:
        _write(folder, path, read_jsonl(path), {})
    except (KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not what a run writes ({said})") from None
    return read_header(folder, name)


def read_header(folder: RunFolder, name: str) -> Header | None:
    """None where there is no such script, or not of this form, or one that does more than to hand
    its value to the page: a run's folder may come from elsewhere."""
    path = folder.path / FOLDER / f"{name}.js"
    try:
        if not is_own(path, name, stamp(path)):
            return None
        with path.open("rb") as file:
            read = json.loads(file.readline().removeprefix(b"//"))
        if read["form"] != FORM:
            return None
        size, time = read["source"]
        sets = [SetFigures(**each) for each in read["sets"]]
        return Header((size, time), read["prompts"], sets, read["traced"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


@lru_cache(maxsize=1 << 16)  # a run writes its page often
def is_own(path: Path, name: str, stamped: tuple[int, int]) -> bool:
    """Whether a script is a comment and one statement that calls the page with JSON, as `_write`
    has it; `stamped` is the file's `stamp`. OSError, ValueError."""
    if path.is_symlink() or not path.is_file() or stamped[0] > MOST_SCRIPT:
        return False
    text = path.read_bytes().decode("ascii")
    begin, end = f"unslothrlShow({embedded(name)}, ", ");\n"
    first, _, statement = text.partition("\n")
    if not first.startswith("//") or "\r" in text:
        return False
    if not statement.startswith(begin) or not statement.endswith(end):
        return False
    json.loads(statement[len(begin) : -len(end)])
    return True


def name_of(source: Path) -> str:
    """Of the script of a file of rollouts or of an evaluation."""
    if source.parent.name == ROLLOUTS:
        return source.stem
    return f"eval_{source.stem.removeprefix('step_')}"


def stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _sources(folder: RunFolder) -> list[Path]:
    evals = sorted((folder.path / EVALS).glob("*.jsonl"))
    return [
        *(folder.rollouts_file(step) for step in folder.rollout_steps()),
        *(path for path in evals if path.stem.isprintable()),  # which a link can name
    ]


def _write(folder: RunFolder, source: Path, rows: Rows, tokens: Mapping[int, Tokens]) -> Path:
    groups = grouped(rows)
    shown = chosen_groups([len(group) for group in groups], MOST_COMPLETIONS)
    header = Header(
        stamp(source),
        [prompt_facts([rows[i] for i in groups[g]]) for g in shown],
        set_figures(rows) if source.parent.name == EVALS else [],
        traced=bool(tokens),
    )
    chosen = [groups[g][:MOST_COMPLETIONS] for g in shown]
    about = {
        "file": f"{source.parent.name}/{source.name}",
        "completions": len(rows),
        "shown": sum(map(len, chosen)),
        "prompts_in_all": len(groups),
    }
    name = name_of(source)
    for length in LENGTHS:
        if length != LENGTHS[-1] and least_bytes(rows, chosen, tokens, length) > MOST_BYTES:
            continue
        prompts = [prompt(rows, group, tokens, length) for group in chosen]
        value = embedded({**about, "prompts": prompts})
        if len(value) <= MOST_BYTES:
            break
    path = folder.path / FOLDER / f"{name}.js"
    path.parent.mkdir(exist_ok=True)
    first = f"//{embedded(asdict(header))}\n"
    write_whole(path, f"{first}unslothrlShow({embedded(name)}, {value});\n".encode("ascii"))
    return path


def least_bytes(
    rows: Rows, groups: Sequence[Sequence[int]], tokens: Mapping[int, Tokens], length: Length
) -> int:
    """What the completions take at least, in a moment: a token is a text and two numbers."""
    return sum(
        min(len(rows[i]["completion"]), length[0])
        + 7 * min(len(tokens[i].pieces) if i in tokens else 0, length[1])
        for group in groups
        for i in group
    )


def embedded(value: Any) -> str:
    """JSON that may stand in a script and in a page: ASCII, no < or >, no line ends."""
    try:
        text = ENCODER.encode(value)
    except (TypeError, ValueError):  # NumPy's numbers, or none that JSON has
        text = ENCODER.encode(plain(value))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def grouped(rows: Rows) -> list[list[int]]:
    """The numbers of the rows of each prompt: its candidates come one after the other."""
    groups: list[list[int]] = []
    before: Mapping[str, Any] | None = None
    for number, row in enumerate(rows):
        same = before is not None and all(
            row.get(key) == before.get(key) for key in ("task", "set", "policy")
        )
        if before is None or not same or row["candidate"] <= before["candidate"]:
            groups.append([])
        groups[-1].append(number)
        before = row
    return groups


def chosen_groups(sizes: Sequence[int], most: int) -> list[int]:
    """The groups that are shown, ascending: all where they have at most `most` completions, else
    some over the whole step. The same sizes give the same groups."""
    if sum(sizes) <= most:
        return list(range(len(sizes)))
    fitting = max(1, most // max(sizes))
    return sorted({i * len(sizes) // fitting for i in range(min(fitting, len(sizes)))})


def prompt_facts(rows: Rows) -> list[Any]:
    """[name, mean reward, how many scored at least 1, how many there are, the longest's length in
    characters, how many were truncated]: what prompts of all steps are searched by."""
    return [
        name_of_prompt(rows[0]),
        round(mean([reward_of(row) for row in rows]), 4),
        sum(score_of(row) >= 1 for row in rows),
        len(rows),
        max(len(row["completion"]) for row in rows),
        sum(row["finish_reason"] == "length" for row in rows),
    ]


def name_of_prompt(row: Mapping[str, Any]) -> str:
    """Its task, after the set (and policy) of an evaluation."""
    return ": ".join([*([title_of(row)] if "set" in row else []), cut_name(row["task"])])


def title_of(row: Mapping[str, Any]) -> str:
    """Set and policy of a row of an evaluation."""
    return ", ".join(cut_name(row[key]) for key in ("set", "policy") if key in row)


def reward_of(row: Mapping[str, Any]) -> float:
    """The sum of a row's rewards."""
    return sum(value for value in row["rewards"].values() if is_number(value))


def prompt(
    rows: Rows, group: Sequence[int], tokens: Mapping[int, Tokens], length: Length
) -> dict[str, Any]:
    """A prompt and its candidates."""
    first = rows[group[0]]
    return {
        "name": name_of_prompt(first),
        "answer": cut_name(first.get("answer", "")),
        "prompt": cut_text(first["prompt"], length[0]),
        "rewards": [cut_name(name) for name in first["rewards"]],
        "candidates": [candidate(rows[i], tokens.get(i), length) for i in group],
    }


def candidate(row: Mapping[str, Any], tokens: Tokens | None, length: Length) -> dict[str, Any]:
    """A completion; its tokens' log-probabilities in 1/100 nats, gaps in 1/10,000 nats, advantages
    in 1/1,000."""
    found = {
        "number": row["candidate"],
        **body_of(row, length[0]),
        "rewards": list(row["rewards"].values()),
        "score": row["score"],
        "end": row["finish_reason"],
    }
    for key, name in (("advantage", "advantage"), ("selected", "selected"), ("tokens", "length")):
        if key in row:
            found[name] = row[key]
    if "policy_version" in row:
        found["version"] = row["policy_version"]
    count = min(length[1], len(tokens.pieces)) if tokens is not None else 0
    if tokens is not None and count:
        found["tokens"] = {
            "pieces": tokens.pieces[:count],
            "logprobs": scaled(tokens.logprobs[:count], 100),
            "left_out": tokens.left_out + len(tokens.pieces) - count,
        }
        if tokens.gaps is not None:
            found["tokens"]["gaps"] = scaled(tokens.gaps[:count], 10_000)
        if tokens.advantages is not None:
            found["tokens"]["advantages"] = scaled(tokens.advantages[:count], 1000)
    return found


def body_of(row: Mapping[str, Any], most: int) -> dict[str, Any]:
    """What was written: the turns of an episode, and why it is lost; else a text."""
    turns = row.get("turns")
    found = episodes.shown(turns, most) if turns else {"text": cut_text(row["completion"], most)}
    return found | ({"lost": cut_text(row["lost"], LONGEST_NAME)[0]} if "lost" in row else {})


def scaled(values: Iterable[float | None], by: int) -> list[int | None]:
    """Whole numbers, which take the least room; None stays, and is what not finite ones become."""
    return [round(v * by) if is_number(v) else None for v in values]


def cut_name(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"


def set_figures(rows: Rows) -> list[SetFigures]:
    """Of each set, and each policy, of an evaluation."""
    figures = []
    for name, of_set in by_set(rows).items():
        scores = list(of_set.values())
        figures.append(
            SetFigures(
                name,
                problems=len(scores),
                candidates=max(map(len, scores)),
                pass_at_1=_triple([mean(values) for values in scores]),
                best_of_n=_triple([max(values) for values in scores]),
            )
        )
    return figures


def by_set(rows: Rows) -> dict[str, dict[str, list[float]]]:
    """Name of the set -> task -> the scores of its completions."""
    found: dict[str, dict[str, list[float]]] = {}
    for group in grouped(rows):
        row = rows[group[0]]
        tasks, key = found.setdefault(title_of(row), {}), str(row["task"])
        while key in tasks:
            key += "'"
        tasks[key] = [score_of(rows[i]) for i in group]
    return found


def score_of(row: Mapping[str, Any]) -> float:
    return row["score"] if is_number(row["score"]) else 0.0


def _triple(values: Sequence[float]) -> tuple[float, float, float]:
    found = estimate(values)
    return found.mean, found.low, found.high

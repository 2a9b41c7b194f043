"""What differs between the folders of two runs that should be the same, for tests and benches."""

import itertools
import json
import re
import signal
from pathlib import Path
from typing import Any

TIMED = re.compile(r"timing/|memory/|.*_s$|.*tokens_per_s")  # what cannot be the same twice
FILES = ("rollouts/*.jsonl", "evals/*.jsonl", "adapters/*/adapter_model.safetensors")


def rows(path: Path) -> list[dict]:
    """Of a JSONL file, without a last line that is not whole; [] where there is none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def metrics(folder: Path) -> list[dict]:
    return rows(folder / "metrics.jsonl")


def exact(row: dict) -> dict:
    return {name: value for name, value in row.items() if not TIMED.match(name)}


def differences(found: Path, whole: Path) -> list[str]:
    """Steps that are missing or there twice, metrics, completions, adapters, the last checkpoint.
    Adapters that only `found` has are those of its stops."""
    ours, theirs = ([exact(row) for row in metrics(each)] for each in (found, whole))
    differ = []
    if [row["step"] for row in ours] != [row["step"] for row in theirs]:
        differ.append(f"steps {[row['step'] for row in ours]}")
    differ += [f"metrics of step {b['step']}" for a, b in zip(ours, theirs, strict=False) if a != b]
    last = (whole / "checkpoints" / "latest").read_text().strip()
    for pattern in (*FILES, f"checkpoints/{last}/learner.safetensors"):
        names = {path.relative_to(whole) for path in whole.glob(pattern)}
        also = {path.relative_to(found) for path in found.glob(pattern)}
        if pattern.startswith("adapters"):
            also &= names
        assert names or "evals" in pattern, pattern
        differ += [f"{name} is in one" for name in sorted(map(str, names ^ also))]
        differ += [
            str(name)
            for name in sorted(names & also)
            if (found / name).read_bytes() != (whole / name).read_bytes()
        ]
    return differ


def signal_in(patch: Any, owner: Any, name: str, call: int, sent: int, after: bool = False) -> None:
    """Sends this process a signal in the `call`th call of a function, or right after it."""
    real, calls = getattr(owner, name), itertools.count(1)

    def told(*arguments, **keywords):
        is_due = next(calls) == call
        if is_due and not after:
            signal.raise_signal(sent)
        result = real(*arguments, **keywords)
        if is_due and after:
            signal.raise_signal(sent)
        return result

    patch.setattr(owner, name, told)

"""What `unslothrl check-model` says of a tiny model of each family, with random weights.

    python bench/check_models.py [--engine vllm] [--seeds 1] [--no_write] [FAMILY ...]

One family after the other, Llama among them to compare with; those that are refused by their line.
Of several seeds, which make other weights, the table has the first one's figures.
Prints the table of docs/models.md and writes bench/results/check-models-cpu.json.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from facts import facts, result_file

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import families  # noqa: E402

SHOWN = {  # a check, and its column: the numbers of its figure that are shown
    "LoRA": ("LoRA", r"([\d.]+%)"),
    "base compared between processes": ("4-bit bytes", r"([\d.]+%)"),
    "micro-batches": ("alone, together", r"(\S+) nats a token"),
    "gradients": ("gradients", r"(\S+) of its norm"),
    "slopes": ("slopes", r"at most (\S+) of"),
    "resume": ("resume", r"at most (\S+) apart"),
    "adapter in the engine": ("canary", r"changes (\d of \d)"),
    "sampler gap": ("sampler gap", r"([\d., ]+) nats"),
    "merged export": ("export", r"logits (\S+) from the adapter"),
}


def checked(config: Any, engine: str, seed: int) -> dict[str, Any]:
    """{"checks": [...]}, or {"refused": its line}."""
    with tempfile.TemporaryDirectory() as scratch:
        base = families.saved(Path(scratch) / "base", families.built(config, seed))
        command = [sys.executable, "-m", "unslothrl", "check-model", base]
        started, places = time.time(), {"XDG_CACHE_HOME": f"{scratch}/cache"}
        done = subprocess.run(
            [*map(str, command), "--engine", engine, "--json"],
            capture_output=True, text=True, env=os.environ | places, cwd=ROOT,
        )  # fmt: skip
    if done.returncode == 2:
        line = done.stderr.splitlines()[-1]
        return {"refused": line.partition(f"{base}: ")[2]}
    assert done.stdout, done.stderr[-3000:]
    return {"checks": json.loads(done.stdout), "seconds": round(time.time() - started)}


def row_of(name: str, seeds: list[dict[str, Any]]) -> list[str]:
    first = seeds[0]
    if "refused" in first:
        return [name, f"refused: {first['refused']}"]
    judged = [c["passed"] for each in seeds for c in each["checks"] if c["passed"] is not None]
    figures = {check["name"]: check["figure"] for check in first["checks"]}
    cells = [name, f"{sum(judged)} of {len(judged)}"]
    for check, (_, pattern) in SHOWN.items():
        (shown,) = re.search(pattern, figures[check]).groups()  # type: ignore[union-attr]
        cells.append(max(shown.split(", ")))
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", nargs="*")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--no_write", action="store_true")
    options = parser.parse_args()
    configs = {**families.TRAINED, **{name: each for name, (each, _) in families.REFUSED.items()}}
    found: dict[str, Any] = {}
    columns = ["family", "passed", *(column for column, _ in SHOWN.values())]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for name in options.family or configs:
        seeds = range(options.seeds if name in families.TRAINED else 1)
        found[name] = [checked(configs[name](), options.engine, seed) for seed in seeds]
        print(f"| {' | '.join(row_of(name, found[name]))} |", flush=True)
        if not options.no_write:
            written = {**facts(), "engine": options.engine, "families": found}
            result_file("check-models").write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()

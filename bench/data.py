"""Does a gigabyte of rows load in little memory, and how long does it take?

    python bench/data.py                    # writes a gigabyte of JSONL, JSON and CSV in turn

Loads each as a run does (every row checked, a tenth held out, 640 tasks drawn), with the embedded
tokenizer, in a process of its own. Writes bench/results/data-cpu.json.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from facts import facts

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "data-cpu.json"
SIZE = 1 << 30
LOAD = """
import sys, time
started = time.perf_counter()
from unslothrl import embedded
from unslothrl.weights import base_model
from unslothrl.runs.build import data_options
from unslothrl.config.options import Config
from unslothrl.data import tasks
config = Config(dataset=sys.argv[1], max_prompt_tokens=2000)
tokenizer = base_model.load_tokenizer(embedded.BASE)
ready = time.perf_counter()
data = tasks.load(data_options(config), tokenizer)
loaded, position = time.perf_counter(), 0
for _ in range(20):
    drawn, position = data.train.draw(position, 32)
drawn_s = time.perf_counter() - loaded
peak = open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
print(len(data.train.tasks), int(peak) >> 10, loaded - ready, drawn_s / 20)
"""


def write(path: Path) -> int:
    """Writes a file of `SIZE` bytes in the format of its suffix. -> the number of rows"""
    kind, rows = path.suffix, 0
    with path.open("w") as file:
        file.write({".json": "[\n", ".csv": "problem,answer\n", ".jsonl": ""}[kind])
        while file.tell() < SIZE:
            part = []
            for i in range(rows, rows + 10_000):
                problem = f"Row {i}. " + "How much is it all in all? " * (i % 20)
                row = f"{problem},{i}" if kind == ".csv" else json.dumps(
                    {"problem": problem, "answer": str(i)}
                )  # fmt: skip
                part.append(row)
            file.write((",\n" if kind == ".json" and rows else "") +
                       (",\n" if kind == ".json" else "\n").join(part) +
                       ("" if kind == ".json" else "\n"))  # fmt: skip
            rows += len(part)
        file.write("]" if kind == ".json" else "")
    return rows


def main() -> None:
    result: dict[str, object] = facts(("numpy", "tokenizers", "transformers"))
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("jsonl", "json", "csv"):
            path = Path(folder) / f"large.{kind}"
            rows, size = write(path), path.stat().st_size
            done = subprocess.run(
                [sys.executable, "-c", LOAD, str(path)], cwd=ROOT, check=True, capture_output=True
            )
            trained, peak_mb, load_s, step_s = map(float, done.stdout.split())
            result[kind] = {
                "bytes": size,
                "rows": rows,
                "rows trained on": int(trained),
                "peak MB, libraries included": int(peak_mb),
                "seconds to load": round(load_s, 1),
                "seconds to draw 32 tasks": round(step_s, 4),
            }
            print(kind, result[kind], flush=True)
            path.unlink()
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

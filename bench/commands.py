"""The help of every command: lines at 80 columns, examples, and seconds beside bare Python's.

    python bench/commands.py [--times 9]     # writes bench/results/commands-cpu.json

Calls alternate with `python -c pass`; the seconds are the least of each, which other work beside
them does not lengthen.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from facts import facts, result_file

PROGRAM = str(Path(sys.executable).with_name("unslothrl"))


def called(*words: str) -> tuple[float, str]:
    begun = time.perf_counter()
    said = subprocess.run(
        words, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=True
    ).stdout
    return time.perf_counter() - begun, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=9)
    times = parser.parse_args().times
    from unslothrl.commands.flags import COMMANDS

    rows, bare = {}, []
    for name in ["", *(each for names in COMMANDS.values() for each in names)]:
        taken = []
        for _ in range(times):
            seconds, text = called(PROGRAM, *name.split(), "--help")
            taken.append(seconds)
            bare.append(called(sys.executable, "-c", "pass")[0])
        lines = text.splitlines()
        examples = lines[lines.index("Examples:") + 1 :] if "Examples:" in lines else []
        rows[f"unslothrl {name}".strip()] = {
            "lines": len(lines), "examples": len(examples), "seconds": round(min(taken), 3),
        }  # fmt: skip
    result = {**facts(("click",)), "bare_python_s": round(min(bare), 3), "commands": rows}
    result_file("commands").write_text(json.dumps(result, indent=1) + "\n")
    most = max(row["seconds"] for row in rows.values())
    print(f"bare Python {min(bare):.3f} s, the slowest help {most:.3f} s")
    print("| command | lines | examples | seconds |\n| --- | --- | --- | --- |")
    for name, row in rows.items():
        print(f"| `{name}` | {row['lines']} | {row['examples']} | {row['seconds']:.3f} |")


if __name__ == "__main__":
    main()

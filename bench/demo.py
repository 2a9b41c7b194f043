"""How long `unslothrl demo` takes to show something: `python bench/demo.py [--rounds 3]`.

Seconds from its start to the first answers (the evaluation before training), to the second point of
the curve, and to its end; and the process's peak memory. Medians go to bench/results/demo-cpu.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from facts import facts, result_file


def measured() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        started, rows = time.monotonic(), []
        process = subprocess.Popen(
            [sys.executable, "-m", "unslothrl", "demo", "--output_dir", folder],
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        for line in process.stdout:
            if "█" in line:
                rows.append((time.monotonic() - started, line.split()[1]))
        _, status, used = os.wait4(process.pid, 0)
        assert status == 0, status
    return {
        "first answers, s": rows[0][0], "second point, s": rows[1][0],
        "end, s": time.monotonic() - started, "peak MB": used.ru_maxrss / 1024,
        "right before, %": float(rows[0][1][:-1]), "right after, %": float(rows[-1][1][:-1]),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = [measured() for _ in range(parser.parse_args().rounds)]
    result = {
        "command": "python bench/demo.py", **facts(),
        **{name: round(statistics.median(each[name] for each in rounds), 1) for name in rounds[0]},
    }  # fmt: skip
    result_file("demo").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

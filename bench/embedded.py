"""Does the main job learn? The embedded default with three seeds, and with shuffled rewards.

    python bench/embedded.py                # resumable: finished runs are not repeated

Runs the command as a user would, reads the run folders, and writes bench/results/embedded-cpu.json:
held-out pass@1 before and after, the seconds without evaluation, the largest sampler gap of any
step.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from facts import facts

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "embedded-cpu.json"
RUNS = [(seed, shuffled) for seed in (0, 1, 2) for shuffled in (False, True)]


def run(seed: int, shuffled: bool, output: Path) -> dict:
    """One run of the main job -> its figures."""
    name = f"{'shuffled' if shuffled else 'seed'}-{seed}"
    flags = ["--learner", "grpo", "--seed", str(seed), "--output_dir", str(output)]
    flags += ["--run_name", name, *(["--shuffle_rewards"] if shuffled else [])]
    folder = output / name
    if not (folder / "summary.json").exists():
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        started = time.time()
        subprocess.run([sys.executable, "train_distributed.py", *flags], cwd=ROOT, check=True)
        (folder / "wall.json").write_text(json.dumps(time.time() - started))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evals = [(row["step"], row["eval/held_out/pass@1"]) for row in rows if "timing/eval_s" in row]
    evaluation_s = sum(row.get("timing/eval_s", 0) for row in rows)
    timed = folder / "wall.json"  # absent for a run that was started by hand
    wall = json.loads(timed.read_text()) if timed.exists() else None
    return {
        "command": "python train_distributed.py "
        + " ".join([*flags[:4], *(["--shuffle_rewards"] if shuffled else [])]),
        "pass@1 by step": evals,
        "best of 8 before": rows[0]["eval/held_out/best_of_n"],
        "wall_s": wall and round(wall, 1),
        "evaluation_s": round(evaluation_s, 1),
        "wall_without_evaluation_s": wall and round(wall - evaluation_s, 1),
        "seconds a step": round(sum(r.get("timing/step_s", 0) for r in rows) / (len(rows) - 1), 2),
        "largest sampler gap": max(row.get("train/sampler_gap", 0) for row in rows),
        "memory": {
            f"{who}_peak_mb": round(max(row.get(f"memory/{who}_peak_mb", 0) for row in rows))
            for who in ("learner", "actor")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench-embedded")
    output = parser.parse_args().output
    runs = {
        f"{'shuffled' if shuffled else 'seed'} {seed}": run(seed, shuffled, output)
        for seed, shuffled in RUNS
    }
    result = {"command": "python bench/embedded.py", **facts(), "runs": runs}
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for name, figures in runs.items():
        before, after = figures["pass@1 by step"][0][1], figures["pass@1 by step"][-1][1]
        seconds = figures["wall_without_evaluation_s"]
        print(f"{name}: pass@1 {before:.3f} -> {after:.3f}, {seconds} s without evaluation")


if __name__ == "__main__":
    main()

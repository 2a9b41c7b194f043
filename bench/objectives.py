"""Does every objective learn, and only from its rewards? Which candidates are worth training on?

    python bench/objectives.py                  # resumable: finished runs are not repeated
    python bench/objectives.py --only grpo ppo  # some of the learners

The embedded default with `--learner X` for each objective, once with its rewards and once with them
shuffled inside groups; then grpo with half of the candidates, selected in different ways. In
one process with the transformers engine, which generates these small completions twice as fast as
vLLM on a CPU. Reads the run folders and writes bench/results/objectives-cpu.json.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from facts import facts

from unslothrl.algorithms import objectives

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "objectives-cpu.json"
FLAGS = ["--number_of_actors", "0", "--engine", "transformers", "--cluster", "local"]
STEPS = {"dapo": 15}  # its steps are longer, because it draws prompts again; 30 for the others
SELECTIONS = {
    "all": ["--select", "all"],
    "topk 4": ["--select", "topk", "--topk", "4"],
    "max_variance 4": ["--select", "max_variance", "--topk", "4"],
    "random 4": ["--select", "random", "--topk", "4"],
}


def run(name: str, flags: list[str], output: Path) -> list[dict]:
    """One run of the main job -> its metrics."""
    folder = output / name
    if not (folder / "summary.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "train_distributed.py", *flags]
        where = ["--output_dir", str(output), "--run_name", name]
        subprocess.run([*command, *where], cwd=ROOT, check=True)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def figures(rows: list[dict], flags: list[str]) -> dict:
    """What is reported of a run, from the rows of its metrics.jsonl."""
    seconds, curve = 0.0, []
    for row in rows:
        seconds += row.get("timing/step_s", 0.0)
        if "eval/held_out/pass@1" in row:
            curve.append([row["step"], round(seconds, 1), row["eval/held_out/pass@1"]])
    return {
        "command": " ".join(["python train_distributed.py", *flags]),
        "step, seconds of steps, pass@1": curve,
        "reward of the last 5 steps": round(sum(r["reward/mean"] for r in rows[-5:]) / 5, 3),
        "rise": round(curve[-1][2] - curve[0][2], 4),
        "completions": rows[-1]["samples_seen"],
        "largest sampler gap": max(row.get("train/sampler_gap", 0) for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench-objectives")
    parser.add_argument("--only", nargs="*", default=objectives.names(), help="learners")
    options = parser.parse_args()
    trained: dict[str, dict] = {}
    for shuffled in ([], ["--shuffle_rewards"]):
        for learner in options.only:
            steps = str(STEPS.get(learner, 30))
            flags = ["--learner", learner, "--max_steps", steps, "--eval_every", steps, *FLAGS]
            name = f"{learner}{'-shuffled' if shuffled else ''}"
            trained[name] = figures(run(name, flags + shuffled, options.output), flags + shuffled)
            print(f"{name}: {json.dumps(trained[name])}", flush=True)
    selections: dict[str, dict] = {}
    for name, chosen in SELECTIONS.items():
        flags = ["--learner", "grpo", *chosen, "--max_steps", "40", "--eval_every", "4", *FLAGS]
        rows = run(f"select-{name.replace(' ', '-')}", flags, options.output)
        selections[name] = figures(rows, flags)
        print(f"{name}: {json.dumps(selections[name])}", flush=True)
    result = {
        "command": "python bench/objectives.py",
        **facts(),
        "objectives": trained,
        "selections": selections,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

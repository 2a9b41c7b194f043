"""Does the main job learn? The embedded bases with three seeds, and with shuffled rewards.

    python bench/embedded.py                # sums and differences, over Ray and vLLM
    python bench/embedded.py json           # requests to JSON, in one process, and the reward that
                                            # docs/rewards.md games, and its repair
    python bench/embedded.py hybrid         # the sums on a Qwen3.5 of the embedded base's size, in
                                            # one process with vLLM, one seed, base first

Resumable: finished runs are not repeated. Runs the command as a user would, reads the run folders,
and writes bench/results/embedded-cpu.json, embedded-json-cpu.json or embedded-hybrid-cpu.json:
held-out pass@1 before and after, the mean reward, the seconds without evaluation, the largest
sampler gap of any step.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from facts import facts

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 2)
ONE_PROCESS = ["--cluster", "local", "--number_of_actors", "0", "--engine", "transformers"]
JSON = ["--recipe", "json-cpu", *ONE_PROCESS]
SHUFFLED = ["--shuffle_rewards"]
HYBRID = ROOT / "runs" / "hybrid-base"
SUMS = ["--recipe", "tiny-cpu", "--model", str(HYBRID.relative_to(ROOT)), "--cluster", "local"]
KINDS: dict[str, dict[str, list[str]]] = {  # what is run -> kind of run -> its flags
    "sums": {"seed": ["--learner", "grpo"], "shuffled": ["--learner", "grpo", *SHUFFLED]},
    "hybrid": {"seed": SUMS, "shuffled": [*SUMS, *SHUFFLED]},
    "json": {
        "seed": JSON,
        "shuffled": [*JSON, *SHUFFLED],
        "gamed": [*JSON, "--reward", "json=0", "--reward", "grounded.py:grounded"],
        "repaired": [*JSON, "--reward", "json=0", "--reward", "fields.py:fields"],
    },
}


def written_rewards(folder: Path) -> dict[str, Path]:
    """The files of the tutorial in docs/rewards.md, written into a folder, by their names."""
    page = (ROOT / "docs" / "rewards.md").read_text()
    found = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in found:
        (folder / name).write_text(text)
    return {name: folder / name for name, _ in found}


def run(kind: str, seed: int, flags: list[str], output: Path) -> dict:
    """One run of the main job -> its figures."""
    name = f"{kind}-{seed}"
    files = written_rewards(output)
    given = [re.sub(r"^\w+\.py", lambda m: str(files.get(m[0], m[0])), flag) for flag in flags]
    own = ["--seed", str(seed), "--output_dir", str(output), "--run_name", name]
    folder = output / name
    if not (folder / "summary.json").exists():
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        started = time.time()
        command = [sys.executable, "train_distributed.py", *given, *own]
        subprocess.run(command, cwd=ROOT, check=True)
        (folder / "wall.json").write_text(json.dumps(time.time() - started))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    passes = next(name for name in rows[0] if name.endswith("/pass@1"))
    evals = [(row["step"], row[passes]) for row in rows if "timing/eval_s" in row]
    evaluation_s = sum(row.get("timing/eval_s", 0) for row in rows)
    timed = folder / "wall.json"  # absent for a run that was started by hand
    wall = json.loads(timed.read_text()) if timed.exists() else None
    return {
        "command": " ".join(["python train_distributed.py", *flags, "--seed", str(seed)]),
        "pass@1 by step": evals,
        "reward by step": [(r["step"], r["reward/mean"]) for r in rows if "reward/mean" in r],
        "best of n before": rows[0][passes.replace("pass@1", "best_of_n")],
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
    parser.add_argument("task", choices=KINDS, nargs="?", default="sums")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench-embedded")
    given = parser.parse_args()
    if given.task == "hybrid" and not (HYBRID / "config.json").exists():
        made = ["tools/make_embedded_base.py", "--hybrid", "--steps", "500", "--out", HYBRID]
        subprocess.run([sys.executable, *map(str, made)], cwd=ROOT, check=True)
    is_sums = given.task == "sums"
    output = given.output if is_sums else given.output / given.task
    runs = {
        f"{kind} {seed}": run(kind, seed, flags, output)
        for seed in (SEEDS[:1] if given.task == "hybrid" else SEEDS)
        for kind, flags in KINDS[given.task].items()
    }
    command = f"python bench/embedded.py{'' if is_sums else ' ' + given.task}"
    result = {"command": command, **facts(), "runs": runs}
    path = ROOT / "bench" / "results" / f"embedded{'' if is_sums else '-' + given.task}-cpu.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    for name, figures in runs.items():
        before, after = figures["pass@1 by step"][0][1], figures["pass@1 by step"][-1][1]
        first, last = (figures["reward by step"][place][1] for place in (0, -1))
        seconds = figures["wall_without_evaluation_s"]
        print(
            f"{name}: pass@1 {before:.3f} -> {after:.3f}, reward {first:.3f} -> {last:.3f}, "
            f"{seconds} s without evaluation"
        )


if __name__ == "__main__":
    main()

"""Runs with fixed seeds whose numbers are recorded, to show that a change of the code changes none
of them.

    python bench/same_numbers.py record              # writes bench/results/same-numbers-cpu.json
    python bench/same_numbers.py compare [RUN ...]   # runs again; exit code 1 if a byte differs

The record has the SHA-256 of every adapter and every rollout file, and each line of metrics.jsonl
without the measurements of time and memory. All runs use the transformers engine, because the
results of vLLM depend on how requests are batched. A record is valid for one kind of processor.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from unslothrl.tracking.run_folder import json_line  # noqa: E402

RESULT = ROOT / "bench" / "results" / "same-numbers-cpu.json"
SYNC = ("sync/put_s", "sync/fetch_s", "sync/load_s")
LATER = ("train/sampler_gap/",)  # metrics that the record has not
LATER_FIELDS = ("answer",)  # of rollouts, likewise
MEASURED = ("timing/", "memory/", "rollout/tokens_per_s", *SYNC, *LATER)

COMMON = (
    "--model embedded --dataset embedded --engine transformers --backend peft --max_steps 3 "
    "--batch_size 6 --num_candidates 6 --topk 6 --max_new_tokens 40 --train_batch_size 4 "
    "--learner_chunk_size 2 --eval_every 3 --eval_problems 12 --eval_candidates 2 --save_every 1 "
    "--checkpoint_every 1"
)
ALONE = "--cluster local --number_of_actors 0"
BESIDE = "--cluster local --number_of_actors 2"
RAY = "--cluster ray --number_of_actors 2"
RUNS = {
    "grpo, one process": f"--learner grpo {ALONE}",
    "grpo, two actors in one process": f"--learner grpo {BESIDE}",
    "grpo, Ray": f"--learner grpo {RAY}",
    "grpo, Ray, learner alone": "--learner grpo --cluster ray --number_of_actors 0",
    "dapo, one process": f"--learner dapo {ALONE}",
    "dapo, Ray": f"--learner dapo {RAY}",
    "ppo, two epochs, one process": f"--learner ppo --epochs_per_rollout 2 {ALONE}",
    "ppo, two updates, Ray": f"--learner ppo --updates_per_rollout 2 {RAY}",
    "ppo, KL in the reward": f"--learner ppo --kl reward --kl_coefficient 0.05 {ALONE}",
    "reinforce_pp, Ray": f"--learner reinforce_pp {RAY}",
    "grpo, KL in the loss": f"--learner grpo --kl loss --kl_coefficient 0.04 {BESIDE}",
    "gspo, two updates": f"--learner gspo --updates_per_rollout 2 {ALONE}",
    "pg, four of six": f"--learner pg --topk 4 --select max_variance {BESIDE}",
    "grpo, shuffled": f"--learner grpo --shuffle_rewards {ALONE}",
    "grpo, dropout": f"--learner grpo --lora_dropout 0.1 {ALONE}",
    "grpo, chunks of five": f"--learner grpo --max_num_seqs 5 {BESIDE}",
    "grpo, top-p and top-k": f"--learner grpo --top_p 0.9 --sampling_top_k 20 {ALONE}",
    "grpo, other rewards": (
        f"--learner grpo --reward think_answer_tags --reward format=0.5 --reward tags {ALONE}"
    ),
    "grpo, two learners in one process": f"--learner grpo --number_of_learners 2 {BESIDE}",
    "grpo, two learners, Ray": "--learner grpo --number_of_learners 2 --cluster ray "
    "--number_of_actors 1",
}


def take(name: str, folder: Path) -> dict:
    """Runs `name` in `folder`. -> its record"""
    command = [sys.executable, str(ROOT / "train_distributed.py"), *COMMON.split()]
    command += [*RUNS[name].split(), "--output_dir", str(folder), "--run_name", "run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    run = folder / "run"
    files = [*run.glob("adapters/*/adapter_model.safetensors"), *run.glob("rollouts/*.jsonl")]
    return {
        "sha256": {
            str(path.relative_to(run)): hashlib.sha256(recorded(path)).hexdigest()
            for path in sorted(files)
        },
        "metrics": [
            {key: value for key, value in json.loads(line).items() if not key.startswith(MEASURED)}
            for line in (run / "metrics.jsonl").read_text().splitlines()
        ],
    }


def recorded(path: Path) -> bytes:
    """The content of a file, of rollouts without the fields that the record has not."""
    if path.suffix != ".jsonl":
        return path.read_bytes()
    rows = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    return b"".join(
        json_line({name: value for name, value in row.items() if name not in LATER_FIELDS})
        for row in rows
    )


def differences(before: dict, now: dict) -> list[str]:
    """A line for every difference between two records of a run."""
    changes = [
        f"{name}: {'missing' if name not in now['sha256'] else 'another content'}"
        for name, digest in before["sha256"].items()
        if now["sha256"].get(name) != digest
    ]
    changes += [f"{name}: new" for name in now["sha256"].keys() - before["sha256"].keys()]
    if len(before["metrics"]) != len(now["metrics"]):
        changes.append(f"metrics.jsonl: {len(before['metrics'])} lines, {len(now['metrics'])} now")
    for old, new in zip(before["metrics"], now["metrics"], strict=False):
        for key in sorted(old.keys() | new.keys()):
            if repr(old.get(key)) != repr(new.get(key)):
                changes.append(f"step {old['step']} {key}: {old.get(key)} -> {new.get(key)}")
    return changes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("runs", nargs="*", help="names, or parts of them; not given: all")
    parser.add_argument("--result", type=Path, default=RESULT)
    options = parser.parse_args()
    chosen = [n for n in RUNS if not options.runs or any(part in n for part in options.runs)]
    before = {} if options.what == "record" else json.loads(options.result.read_text())["runs"]
    taken, changed = {}, 0
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            taken[name] = take(name, Path(folder))
        if options.what == "record":
            print(f"{name}: recorded", flush=True)
            continue
        changes = differences(before[name], taken[name])
        changed += bool(changes)
        print(f"{name}: {'the same' if not changes else f'{len(changes)} differences'}", flush=True)
        for line in changes[:12]:
            print(f"  {line}", flush=True)
    if options.what == "record":
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()
        record = {"commit": commit, "processor": platform.processor(), "options": COMMON}
        options.result.write_text(json.dumps({**record, "runs": taken}, indent=1) + "\n")
    return bool(changed)


if __name__ == "__main__":
    raise SystemExit(main())

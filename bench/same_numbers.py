"""Runs with fixed seeds in two trees, to show that a change of the code changes no number.

    python bench/same_numbers.py TREE [RUN ...]   # exit code 1 if a byte differs

TREE is a checkout of another commit. Each run is made there and here, one after the other on this
machine; compared are every file of adapters and rollouts by its bytes, and every line of
metrics.jsonl without the measurements of time and memory; metrics that one tree alone has are
named, and are no difference. All runs use the transformers engine,
because the results of vLLM depend on how requests are batched.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEASURED = (
    "timing/",
    "memory/",
    "rollout/tokens_per_s",
    "sync/put_s",
    "sync/fetch_s",
    "sync/load_s",
)
KEPT = ("adapters/*/*.safetensors", "rollouts/*.jsonl")

COMMON = (
    "--model embedded --dataset embedded --engine transformers --backend peft --max_steps 3 "
    "--batch_size 6 --num_candidates 6 --topk 6 --max_new_tokens 40 --train_batch_size 4 "
    "--learner_chunk_size 2 --eval_every 3 --eval_problems 12 --eval_candidates 2 --save_every 1 "
    "--checkpoint_every 1"
)
OF_STAGES = (
    "--dataset embedded --max_steps 4 --batch_size 8 --train_batch_size 4 --eval_every 2 "
    "--eval_problems 12 --save_every 2 --lr 1e-3"
)
STAGES = ("sft", "dpo", "rm")
ALONE = "--cluster local --number_of_actors 0"
KL, WEIGHT = "--objective.kl", "--objective.kl_coefficient"
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
    "ppo, KL in the reward": f"--learner ppo {KL} reward {WEIGHT} 0.05 {ALONE}",
    "reinforce_pp, Ray": f"--learner reinforce_pp {RAY}",
    "grpo, KL in the loss": f"--learner grpo {KL} loss {WEIGHT} 0.04 {BESIDE}",
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
    "sft": "sft",
    "sft, packed, two epochs": "sft --packing --max_length 256 --episodes 2",
    "sft, dropout": "sft --lora_dropout 0.1",
    "dpo": "dpo",
    "dpo beside an adapter": "dpo --reference adapter --lora_dropout 0.1",
    "rm": "rm",
}


def take(
    name: str, tree: Path, folder: Path, also: str = ""
) -> tuple[dict[str, bytes], list[dict]]:
    """Runs `name` in a tree. -> (the content of files by name, the lines of metrics)"""
    options = RUNS[name].split() + also.split()
    kind = options.pop(0) if options[0] in STAGES else "train"
    config = (tree / "unslothrl" / "config").glob("*.py")
    if not any("class ObjectiveOptions" in file.read_text() for file in config):  # an earlier one
        options = [word.replace("--objective.", "--") for word in options]
    options += (COMMON if kind == "train" else OF_STAGES).split()
    command = [sys.executable, "-m", "unslothrl", kind, *options]
    command += ["--output_dir", str(folder), "--run_name", "run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree)
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    run = folder / "run"
    files = sorted(file for pattern in KEPT for file in run.glob(pattern))
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return (
        {str(file.relative_to(run)): file.read_bytes() for file in files},
        [{key: row[key] for key in row if not key.startswith(MEASURED)} for row in metrics],
    )


def differences(before: tuple, now: tuple) -> list[str]:
    """A line for every difference between two runs."""
    files, files_now = before[0], now[0]
    changes = [
        f"{name}: {'another content' if name in files and name in files_now else 'only in one'}"
        for name in sorted(files.keys() | files_now.keys())
        if files.get(name) != files_now.get(name)
    ]
    if len(before[1]) != len(now[1]):
        changes.append(f"metrics.jsonl: {len(before[1])} lines, {len(now[1])} now")
    for old, new in zip(before[1], now[1], strict=False):
        for key in sorted(old.keys() & new.keys()):
            if repr(old.get(key)) != repr(new.get(key)):
                changes.append(f"step {old['step']} {key}: {old.get(key)} -> {new.get(key)}")
    return changes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("runs", nargs="*", help="names, or parts of them; not given: all")
    parser.add_argument(
        "--also", default="", help='further options, as in --also="--dtype float32"'
    )
    given = parser.parse_args()
    changed = 0
    for name in RUNS:
        if given.runs and not any(part in name for part in given.runs):
            continue
        taken = []
        for tree in (given.tree, ROOT):
            with tempfile.TemporaryDirectory() as folder:
                taken.append(take(name, tree, Path(folder), given.also))
        changes = differences(*taken)
        changed += bool(changes)
        compared = f"{len(taken[0][0])} files, {len(taken[0][1])} lines of metrics"
        said = f"{len(changes)} differences" if changes else f"the same ({compared})"
        names = [{key for row in rows for key in row} for _, rows in taken]
        if alone := sorted(names[0] ^ names[1]):
            said += f"; in one tree alone: {', '.join(alone)}"
        print(f"{name}: {said}", *changes[:12], sep="\n  ", flush=True)
    return bool(changed)


if __name__ == "__main__":
    raise SystemExit(main())

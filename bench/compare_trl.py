"""This project beside TRL's GRPOTrainer: the same base, prompts, candidates, tokens and steps.

    python tools/peers.py trl && python bench/compare_trl.py [--json]

Both run `--rounds` times in turns, each in a process of its own. Seconds are of whole steps (the
first, which warms up, left out), memory is the largest process's peak, accuracy is held-out pass@1
at equal wall time: of the last adapters that both had when the faster one was done, drawn and
scored by the same code. TRL gets the micro-batch with which it is fastest here, and no gradient
checkpointing. Writes bench/results/compare-trl-cpu.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from facts import facts

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "compare-trl-cpu.json"
PEER = Path(sys.prefix) / "peers" / "trl"
OURS = {  # this project's set-ups that are measured -> their flags
    "one process": ["--engine", "transformers", "--number_of_actors", "0", "--cluster", "local"],
    "Ray": ["--engine", "transformers", "--number_of_actors", "1"],
    "Ray and vLLM": ["--engine", "vllm", "--number_of_actors", "1"],
}


def flags(work: dict) -> list[str]:
    return [
        "--learner", "grpo", "--model", work["model"], "--dataset", "embedded",
        "--batch_size", str(work["prompts"]),
        "--num_candidates", str(work["candidates"]),
        "--topk", str(work["candidates"]),
        "--max_new_tokens", str(work["new_tokens"]),
        "--temperature", str(work["temperature"]),
        "--lr", str(work["lr"]),
        "--max_lora_rank", str(work["rank"]),
        "--lora_alpha", str(work["alpha"]),
        "--seed", str(work["seed"]),
        "--max_steps", str(work["steps"]),
        "--eval_every", "0",
        "--save_every", "1",
        "--checkpoint_every", str(work["steps"]),
    ]  # fmt: skip


def ours(work: dict, kind: str, folder: Path) -> dict:
    """A run of train_distributed.py -> seconds of each step, peak memory, the adapters' folder."""
    name = kind.replace(" ", "-")
    command = [sys.executable, "train_distributed.py", *flags(work), *OURS[kind]]
    command += ["--output_dir", str(folder), "--run_name", name]
    peak = watched(command, folder / f"{name}.log", {})
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "timing/step_s" in row]
    parts = ("generation", "reward", "update", "sync", "overhead")
    return {
        "seconds": [row["timing/step_s"] for row in rows],
        "peak_mb": max([peak, *(row[f"memory/{w}_peak_mb"] for row in rows for w in PROCESSES)]),
        "where the time goes": {
            part: statistics.fmean(row[f"timing/{part}_s"] for row in rows[1:]) for part in parts
        },
        "tokens": sum(row["rollout/tokens"] for row in rows[1:]),
        "adapters": folder / name / "adapters",
    }


PROCESSES = ("learner", "actor")


def peer(work: dict, folder: Path) -> dict:
    """A run of bench/peer.py with TRL -> the same figures as `ours`."""
    folder.mkdir()
    work = {**work, "side": "trl", "folder": str(folder), "adapters": str(folder / "adapters")}
    (folder / "work.json").write_text(json.dumps(work))
    paths = os.pathsep.join([str(PEER), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(ROOT / "bench" / "peer.py")]
    command += [str(folder / "work.json"), str(folder / "result.json")]
    peak = watched(command, folder / "log", {"PYTHONPATH": paths, "TORCH_COMPILE_DISABLE": "1"})
    result = json.loads((folder / "result.json").read_text())
    return {
        "seconds": result["seconds"],
        "peak_mb": max(peak, result["peak_mb"]),
        "tokens": sum(
            row["completions/mean_length"] * work["prompts"] * work["candidates"]
            for row in result["log"][1:]
        ),
        "adapters": folder / "adapters",
    }


def watched(command: list[str], log: Path, environment: dict[str, str]) -> float:
    """Runs a command to its end. -> the peak memory of its largest process in MB"""
    environment = {"OMP_NUM_THREADS": str(os.cpu_count()), **os.environ, **environment}
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()[-3000:]}")
    return usage.ru_maxrss / 1024


def tasks_of(work: dict) -> list[dict[str, str]]:
    """The training problems in the order that our run draws them, as rows for the peer."""
    from unslothrl.cluster.build import data_options
    from unslothrl.data import tasks
    from unslothrl.runs.resolve import resolve
    from unslothrl.weights import base_model

    config = resolve({"model": work["model"], "dataset": "embedded", "seed": work["seed"]}).config
    tokenizer = base_model.load_tokenizer(base_model.prepare(work["model"]))
    train = tasks.load(data_options(config), tokenizer).train
    drawn, _ = train.draw(0, work["prompts"] * work["steps"])
    if any(tuple(tokenizer(task.prompt)["input_ids"]) != task.prompt_ids for task in drawn):
        raise SystemExit("TRL would train on other prompts: the tokenizer adds tokens")
    return [{"prompt": task.prompt, "answer": task.answer} for task in drawn]


def accuracy(work: dict, adapters: list[Path]) -> list[float]:
    """pass@1 of each adapter on the held-out problems: the mean of eight completions at temperature
    0.6."""
    from unslothrl.cluster import build
    from unslothrl.data import tasks
    from unslothrl.records import Assignment, Sampling
    from unslothrl.runs.resolve import resolve
    from unslothrl.weights import base_model
    from unslothrl.weights.adapter import Adapter

    given = {"model": work["model"], "dataset": "embedded", "engine": "transformers"}
    given |= {"max_lora_rank": work["rank"], "lora_alpha": work["alpha"]}
    config = resolve(given).config
    base = base_model.prepare(work["model"])
    data = tasks.load(build.data_options(config), base_model.load_tokenizer(base))
    (held_out,) = data.evals.values()
    actor = build.build_actor(config, base)
    means = []
    for number, folder in enumerate(adapters):
        weights = (folder / "adapter_model.safetensors").read_bytes()
        actor.load(Adapter.of(number, weights, (folder / "adapter_config.json").read_text()))
        sampling = Sampling(0.6, 0.95, 0, work["new_tokens"])
        wanted = [Assignment(i, each, 8, sampling, ("compare",)) for i, each in enumerate(held_out)]
        groups = [group for _, group in actor.collect(assignments=wanted)[0]]
        scores = [score for group in groups for score in group.scores]
        means.append(statistics.fmean(scores))
    actor.close()
    return means


def last_within(side: dict, seconds: float) -> Path:
    """The adapter of the last step that ended within `seconds`; of the first if none did."""
    done, spent = 0, 0.0
    for step_s in side["seconds"]:
        spent += step_s
        done += spent <= seconds
    return side["adapters"] / f"v{max(1, done):06d}"


def figures(work: dict, rounds: list[dict]) -> dict:
    """What is reported of one side over all rounds."""
    seconds = statistics.median(s for r in rounds for s in r["seconds"][1:])
    result = {
        "seconds a step": round(seconds, 3),
        "completions a second": round(work["prompts"] * work["candidates"] / seconds, 1),
        "tokens a second": round(
            sum(r["tokens"] for r in rounds) / sum(sum(r["seconds"][1:]) for r in rounds)
        ),
        "peak MB": round(max(r["peak_mb"] for r in rounds)),
    }
    if "where the time goes" in rounds[0]:
        result["where the time goes"] = {
            part: round(statistics.fmean(r["where the time goes"][part] for r in rounds), 4)
            for part in rounds[0]["where the time goes"]
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("rounds", 3), ("steps", 12), ("prompts", 32), ("candidates", 8), ("new_tokens", 64),
        ("micro_batch", 64), ("seed", 0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kinds", nargs="*", choices=OURS, default=list(OURS))
    parser.add_argument("--json", action="store_true", help="one object with the ratios")
    parser.add_argument("--no_write", action="store_true", help="leave the committed result alone")
    given = parser.parse_args()
    if not PEER.is_dir():
        parser.error("TRL is not installed beside this project: run python tools/peers.py trl")
    from unslothrl.weights import base_model

    work = {
        **{k: getattr(given, k) for k in ("steps", "prompts", "candidates", "new_tokens", "seed")},
        "micro_batch": given.micro_batch, "model": "embedded", "temperature": 1.2, "lr": 1e-3,
        "rank": 32, "alpha": 16, "gradient_checkpointing": False, "context": 512, "vllm": False,
        "base": str(base_model.prepare("embedded")),
        "rewards": ["accuracy", "format", "tags"],
    }  # fmt: skip
    work["tasks"] = tasks_of(work)
    rounds: dict[str, list[dict]] = {name: [] for name in ("TRL", *given.kinds)}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(given.rounds):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            rounds["TRL"].append(peer({**work, "seed": given.seed + number}, folder / "trl"))
            for kind in given.kinds:
                rounds[kind].append(ours({**work, "seed": given.seed}, kind, folder))
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
        first = rounds[given.kinds[0]]
        reached = [
            accuracy(work, [last_within(a, until), last_within(b, until)])
            for a, b in zip(first, rounds["TRL"], strict=True)
            for until in [min(sum(a["seconds"]), sum(b["seconds"]))]
        ]
    result = {name: figures(work, of_side) for name, of_side in rounds.items()}
    mine, theirs = result[given.kinds[0]], result["TRL"]
    ratios = {
        "speedup": round(theirs["seconds a step"] / mine["seconds a step"], 3),
        "memory_ratio": round(mine["peak MB"] / theirs["peak MB"], 3),
        "accuracy": {
            "ours": round(statistics.fmean(a for a, _ in reached), 3),
            "TRL": round(statistics.fmean(b for _, b in reached), 3),
        },
    }
    if not given.no_write:
        command = "python bench/compare_trl.py"
        versions = facts(("torch", "transformers", "peft", "bitsandbytes"))
        shown = {k: v for k, v in work.items() if k not in ("base", "tasks")}
        whole = {"command": command, **versions, "work": shown, "rounds": given.rounds}
        RESULT.write_text(json.dumps({**whole, **result, **ratios}, indent=1) + "\n")
    if given.json:
        print(json.dumps(ratios))
        return
    for name, row in result.items():
        times = row.pop("where the time goes", None)
        print(name.ljust(14), *(f"{key} {value:>8}" for key, value in row.items()), sep="  ")
        if times:
            print(" " * 16, *(f"{part} {value}" for part, value in times.items()), sep="  ")
    print(ratios)


if __name__ == "__main__":
    main()

"""The stages of bench/gpu.sh: the main job at real shapes under capped memory, beside its peers.

Every stage is a process of its own that does what a user would run. A watcher reads the card's used
memory ten times a second; a stage's peak is that over what was used before it, and stands beside
what `unslothrl plan` predicts for the same flags.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = Path(os.environ.get("OUT", ROOT / "bench" / "results" / "gpu"))
WHOLE_S = 570.0  # of one call
SHAPES = {"7B": "qwen2.5-7b", "8B": "llama-3.1-8b", "3B": "qwen2.5-3b", "1.5B": "qwen2.5-1.5b"}
NOISE = f"{ROOT / 'bench' / 'noise.py'}:reward"
MAIN = {
    "learner": "grpo", "dataset": "embedded", "reward": NOISE, "max_prompt_tokens": 350,
    "max_new_tokens": 1200, "num_candidates": 16, "topk": 16, "number_of_actors": 0,
    "eval_every": 0, "fit": "off", "max_lora_rank": 32, "lora_alpha": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """`cap_gb`: the card that it stands for; `limit_s`: after which it is given up."""

    name: str
    shape: str
    flags: dict = field(default_factory=dict)
    cap_gb: float | None = None
    limit_s: float = 180.0
    peer: str | None = None  # "trl" or "unsloth": their trainer instead of ours
    bench: str | None = None  # a script here, run with --model


STAGES = [
    Stage("main job, 7B, one card of 16 GB", "7B", {"batch_size": 4, "max_steps": 2}, 16, 240),
    Stage("main job, 7B, actor and learner on one card of 24 GB", "7B",
          {"batch_size": 4, "max_steps": 2, "number_of_actors": 1, "learner_chunk_size": 0,
           "kv_cache_mb": 4096}, 24, 240),
    Stage("PEFT, 7B", "7B", {"batch_size": 2, "max_steps": 2, "backend": "peft",
                             "number_of_actors": 1, "learner_chunk_size": 0,
                             "kv_cache_mb": 4096}, None, 180),
    Stage("TRL, 7B", "7B", {"batch_size": 4, "max_steps": 2}, None, 240, "trl"),
    Stage("Unsloth's trainer, 7B", "7B", {"batch_size": 4, "max_steps": 2}, None, 240, "unsloth"),
    Stage("learner, 1.5B, packed and padded, both backends", "1.5B", bench="learner.py"),
    Stage("rollout, 1.5B, over bare vLLM", "1.5B", bench="rollout.py"),
    Stage("Llama-3.1-8B at 20K", "8B",
          {"batch_size": 1, "num_candidates": 2, "topk": 2, "max_steps": 1,
           "max_new_tokens": 20_000, "train_batch_size": 1, "max_num_seqs": 2}, 54, 300),
    Stage("main job, 1.5B, one card of 8 GB", "1.5B", {"batch_size": 4, "max_steps": 2}, 8, 150),
    Stage("main job, 3B, one card of 12 GB", "3B", {"batch_size": 4, "max_steps": 2}, 12, 150),
    Stage("D's whole step, 7B, one card of 16 GB", "7B", {"batch_size": 30, "max_steps": 1}, 16,
          420),
]  # fmt: skip


def make_model(shape_name: str, tiny: bool) -> Path:
    """A base of that shape with random weights, quantised; kept for later stages."""
    folder = (
        Path(os.environ.get("MODELS", "/tmp/unslothrl-models")) / f"{shape_name}{'-tiny' * tiny}"
    )
    if (folder / "done").exists():
        return folder
    code = "import sys; sys.path.insert(0, 'bench'); import gpu; gpu.write_model(*sys.argv[1:])"
    command = [sys.executable, "-c", code, shape_name, str(folder), str(int(tiny))]
    subprocess.run(command, check=True, cwd=ROOT)
    (folder / "done").touch()
    return folder


def write_model(shape_name: str, folder: str, tiny: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

    from unslothrl import embedded
    from unslothrl.shapes import KNOWN

    shape = KNOWN[SHAPES[shape_name]]
    small = tiny == "1"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AutoConfig.for_model(
        "qwen2" if shape.biases else "llama",
        num_hidden_layers=2 if small else shape.layers,
        hidden_size=64 if small else shape.hidden,
        intermediate_size=128 if small else shape.inner,
        num_attention_heads=2 if small else shape.heads,
        num_key_value_heads=1 if small else shape.kv_heads,
        head_dim=32 if small else shape.head,
        vocab_size=512 if small else shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=shape.context,
        eos_token_id=2,
        pad_token_id=0,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        plain = AutoModelForCausalLM.from_config(config)
    weights = plain.state_dict()
    if shape.tied:
        weights.pop("lm_head.weight", None)
    quantised = type(plain).from_pretrained(
        None,
        config=config,
        state_dict=weights,
        dtype=torch.bfloat16,
        device_map={"": 0} if device == "cuda" else "cpu",
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        ),
    )
    quantised.save_pretrained(folder)
    for path in embedded.BASE.iterdir():
        if path.name.startswith("tokenizer") or path.suffix == ".jinja":
            shutil.copyfile(path, Path(folder) / path.name)


class Watcher:
    """The card's largest use of memory in MB, over what was used when it began."""

    def __init__(self):
        self.before = self.most = used_mb()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watcher":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.stopped.wait(0.1):
            self.most = max(self.most, used_mb())

    @property
    def peak_mb(self) -> int:
        return self.most - self.before


def used_mb() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(command, capture_output=True, text=True).stdout.split()[0])


def card() -> dict:
    if shutil.which("nvidia-smi") is None:
        return {"name": "no card", "memory_mb": 0}
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version",
               "--format=csv,noheader,nounits", "-i", "0"]  # fmt: skip
    answer = subprocess.run(command, capture_output=True, text=True).stdout.strip().split(", ")
    return {"name": answer[0], "memory_mb": int(answer[1]), "driver": answer[2]}


def flags_of(stage: Stage, model: Path, memory_mb: int, tiny: bool) -> dict:
    flags = {**MAIN, "model": str(model), **stage.flags}
    if memory_mb and stage.cap_gb and not flags["number_of_actors"]:
        # a share of this card that is 0.85 of the one it stands for
        flags["learner_gpu_usage"] = round(0.85 * stage.cap_gb * 1024 / memory_mb, 3)
    if tiny:
        flags |= {"max_new_tokens": 16, "max_prompt_tokens": 64, "num_candidates": 2, "topk": 2,
                  "batch_size": 2, "max_num_seqs": 8, "backend": "peft"}  # fmt: skip
        flags |= {"kv_cache_mb": 64} if flags["number_of_actors"] else {"engine": "transformers"}
    return flags


def as_flags(flags: dict) -> list[str]:
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


def run(stage: Stage, tiny: bool, whole: dict, limit_s: float) -> dict:
    """A stage's figures, or why it has none."""
    model = make_model(stage.shape, tiny)
    flags = flags_of(stage, model, whole["card"]["memory_mb"], tiny)
    folder = Path("/tmp/unslothrl-stages") / stage.name.replace(" ", "-").replace("'", "")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if stage.bench is not None:
        command = [sys.executable, f"bench/{stage.bench}", "--model", str(model)]
    elif stage.peer is None:
        more = {"output_dir": str(folder), "run_name": "run"}
        command = [sys.executable, "train_distributed.py", *as_flags({**flags, **more})]
    else:
        (folder / "work.json").write_text(json.dumps(peer_work(stage, flags, folder)))
        command = [sys.executable, "bench/peer.py", str(folder / "work.json")]
        command.append(str(folder / "result.json"))
    log = OUT / f"{folder.name}.log"
    started = time.time()
    with Watcher() as watcher, log.open("w") as out:
        try:
            done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=out, timeout=limit_s)
            error = None if done.returncode == 0 else f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            error = f"took longer than {limit_s:.0f} s"
    found = {
        "name": stage.name,
        "command": " ".join(command[1:]),
        "cap_gb": stage.cap_gb,
        "wall_s": round(time.time() - started, 1),
        "card_peak_mb": watcher.peak_mb,
        "error": error,
    }
    if stage.bench is not None:
        pass  # it writes a result of its own
    elif stage.peer is None:
        found |= figures_of_run(folder / "run")
        found |= prediction(flags, stage.cap_gb)
    elif (folder / "result.json").exists():
        found |= json.loads((folder / "result.json").read_text())
    return found


def peer_work(stage: Stage, flags: dict, folder: Path) -> dict:
    import compare_trl

    work = {
        "side": stage.peer, "base": flags["model"], "model": "embedded", "folder": str(folder),
        "adapters": None, "prompts": flags["batch_size"], "candidates": flags["num_candidates"],
        "new_tokens": flags["max_new_tokens"], "steps": flags["max_steps"], "micro_batch": 4,
        "context": flags["max_prompt_tokens"] + flags["max_new_tokens"], "seed": 0, "lr": 1e-5,
        "rank": 32, "alpha": 16, "temperature": 1.2, "gradient_checkpointing": True,
        "memory_share": 0.3, "rewards": [NOISE],
    }  # fmt: skip
    return {**work, "tasks": compare_trl.tasks_of(work)}


def figures_of_run(folder: Path) -> dict:
    metrics = folder / "metrics.jsonl"
    if not metrics.exists():
        return {}
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    kept = ("timing/", "memory/", "rollout/tokens", "train/sampler_gap", "train/grad_norm")
    return {"steps": [{k: v for k, v in row.items() if k.startswith(kept)} for row in rows]}


def prediction(flags: dict, cap_gb: float | None) -> dict:
    command = [sys.executable, "-m", "unslothrl", "plan", *as_flags(flags), "--json"]
    command += ["--card", str(cap_gb)] if cap_gb else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return {"plan": done.stderr.strip()}
    found = json.loads(done.stdout)
    return {"plan": {key: found[key] for key in ("fits", "cards")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes, on a CPU")
    parser.add_argument("--only", nargs="*", help="stages whose name contains one of these")
    given = parser.parse_args()
    from importlib import metadata

    versions = {}
    for name in ("torch", "vllm", "unsloth", "transformers", "trl", "peft", "bitsandbytes", "ray"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    began = time.time()
    whole = {"date": time.strftime("%Y-%m-%d"), "card": card(), "versions": versions, "stages": []}
    for stage in STAGES:
        left = WHOLE_S - (time.time() - began)
        if given.only and not any(word in stage.name for word in given.only):
            continue
        if given.rehearse and (stage.peer or stage.bench):
            continue  # they have a form of their own for a CPU
        if left < 30:
            whole["stages"].append({"name": stage.name, "error": "no time was left"})
            continue
        try:
            found = run(stage, given.rehearse, whole, min(left, stage.limit_s))
        except Exception as error:  # the next stage may still say something
            found = {"name": stage.name, "error": repr(error)}
        whole["stages"].append(found)
        (OUT / "gpu.json").write_text(json.dumps(whole, indent=1) + "\n")
        print(stage.name, found.get("error") or "done", f"{time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

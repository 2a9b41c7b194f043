"""The stages of bench/gpu.py and their flags: first the main job, then the riskiest first."""

import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from unslothrl.config.toml_files import command_of

ROOT = Path(__file__).parents[2]
NOISE = f"{ROOT / 'bench' / 'noise.py'}:reward"
# All that stage 0 gives to `train`: the rest is resolved as for `make train`, on the GPU that is
# there. Random weights learn nothing from real rewards, and need no download.
FIRST = {
    "learner": "grpo", "dataset": "embedded", "reward": NOISE, "batch_size": 2, "max_steps": 2,
    "checkpoint_every": 1, "eval_problems": 8,
}  # fmt: skip
JOB = {
    "learner": "grpo", "dataset": "embedded", "reward": NOISE, "max_prompt_tokens": 350,
    "max_new_tokens": 1200, "num_candidates": 16, "topk": 16, "eval_every": 0,
    "max_lora_rank": 32, "lora_alpha": 16, "batch_size": 1, "max_steps": 1,
}  # fmt: skip
SAME = JOB | {"batch_size": 2, "max_new_tokens": 600, "max_steps": 2}  # as the peers' steps
KILLED = JOB | {
    "max_new_tokens": 128, "num_candidates": 8, "topk": 8, "max_steps": 4, "checkpoint_every": 1,
    "save_every": 1, "eval_every": 2, "eval_problems": 8, "eval_candidates": 2,
}  # fmt: skip
TOO_LARGE = JOB | {"batch_size": 8, "max_new_tokens": 600, "train_batch_size": 128}
GSM8K = {"recipe": "gsm8k-8", "max_steps": 60, "eval_every": 30}
TINY = {  # what a rehearsal changes in every run; an actor's vLLM stands in for Unsloth's
    "max_new_tokens": 16, "max_prompt_tokens": 64, "num_candidates": 4, "topk": 4, "batch_size": 2,
    "max_num_seqs": 8, "kv_cache_mb": 64, "backend": "peft", "train_batch_size": 2,
    "dtype": "bfloat16", "number_of_actors": 1, "learner_chunk_size": 0,
}  # fmt: skip
INTERPRETED = {  # tests/unsloth_on_cpu.py has a context of 64 tokens; the interpreter is slow
    "max_prompt_tokens": 40, "max_new_tokens": 8, "num_candidates": 2, "topk": 2,
    "cluster": "local", "engine": "transformers", "number_of_actors": 0,
    "learner_chunk_size": 1,
}  # fmt: skip
SHARED = {"number_of_actors": 0}  # the learner generates with its own weights
BESIDE = {"number_of_actors": 1, "learner_chunk_size": 0}
ACTOR = "an actor's vLLM and PEFT, for Unsloth with its own vLLM"


@dataclass(frozen=True)
class Stage:
    """One measurement. `needs_gb`: the smallest GPU that it is for; `cap_gb`: the size to which a
    larger one is limited. `expected_s`: the seconds that must remain of a call for it to begin;
    after `limit_s` it is ended. `kind`: run, first, killed, recipe, peer, tests, or a script of
    bench/. `stand_in`: what a rehearsal runs in its place."""

    name: str
    measures: str
    shape: str | None
    kind: str = "run"
    flags: dict = field(default_factory=dict)
    needs_gb: int = 8
    cap_gb: int | None = None
    expected_s: float = 90
    limit_s: float = 240
    side: str = ""  # the peer's library: trl or unsloth
    stand_in: str | None = None
    interpreted: bool = False  # whether a rehearsal runs Unsloth under Triton's interpreter
    needs_weights: bool = False  # of the hub

    @property
    def slug(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.name.lower()).strip("-")


def t4_recipe() -> dict:
    """recipes/colab-t4.toml, on random weights and for two steps."""
    recipe = tomllib.loads((ROOT / "recipes" / "colab-t4.toml").read_text())
    ours = {name: JOB[name] for name in ("dataset", "reward", "eval_every")}
    return {**recipe, **ours, "max_steps": 2, "backend": "unsloth"}


STAGES = (
    Stage("make train, 1.5B", "the main job starts, trains 2 steps and resumes", "1.5B", "first",
          FIRST, needs_gb=6, limit_s=400, stand_in="the main job as a CPU resolves it"),
    Stage("7B, a whole step", "seconds, tokens a second, peak", "7B", flags=SAME | SHARED,
          needs_gb=16, expected_s=110, stand_in=ACTOR),
    Stage("7B, TRL with colocated vLLM", "the same step", "7B", "peer", SAME, needs_gb=24,
          expected_s=120, limit_s=300, side="trl",
          stand_in="the same, TRL's kernel under Triton's interpreter"),
    Stage("7B, Unsloth's GRPO notebook loop", "the same step", "7B", "peer", SAME, needs_gb=16,
          expected_s=120, limit_s=300, side="unsloth", stand_in="TRL for Unsloth's trainer"),
    Stage("3B on 12 GB", "peak against plan", "3B", flags=JOB | SHARED, needs_gb=12, cap_gb=12,
          stand_in=ACTOR),
    Stage("parts, 3B on 12 GB", "CUDA context; CUDA graphs, with and without those for no LoRA",
          "3B", "on_card/parts.py", needs_gb=12, cap_gb=12, expected_s=120, limit_s=400,
          stand_in="resident memory for the GPU's"),
    Stage("1.5B on 8 GB", "peak against plan", "1.5B", flags=JOB | SHARED, cap_gb=8, expected_s=70,
          stand_in="Unsloth under Triton's interpreter, base in 16 bits; transformers for its vLLM",
          interpreted=True),
    Stage("7B on 16 GB", "peak against plan", "7B", flags=JOB | SHARED, needs_gb=16, cap_gb=16,
          stand_in=ACTOR),
    Stage("7B, actor and learner on 24 GB", "peak against plan; sync of an actor", "7B",
          flags=JOB | BESIDE, needs_gb=24, cap_gb=24, stand_in="PEFT for Unsloth"),
    Stage("8B, the longest context on 24 GB", "the planner's longest context, tried", "8B",
          "on_card/longest.py", needs_gb=24, cap_gb=24, expected_s=150, limit_s=500,
          stand_in="256 tokens for the planner's figure; PEFT for Unsloth"),
    Stage("an update too large for 8 GB, 1.5B", "micro-batches are halved, and the step is taken",
          "1.5B", flags=TOO_LARGE | SHARED, cap_gb=8, stand_in=ACTOR + ", nothing too large"),
    Stage("sync, 7B", "seconds of each part of a new version's way", "7B", "sync.py", needs_gb=12,
          stand_in="a base of zeros for the 7B; the adapter is as large"),
    Stage("gap and canary, 28 layers", "gap by running sequences; false alarms of 20", "1.5B",
          "on_card/exactness.py", expected_s=80, limit_s=300, stand_in="2 layers"),
    Stage("gap and canary, 36 layers", "gap by running sequences; false alarms of 20", "3B",
          "on_card/exactness.py", needs_gb=12, expected_s=80, limit_s=300, stand_in="2 layers"),
    Stage("resume, 1.5B", "kill -9, resume, evaluate, ask", "1.5B", "killed", KILLED | SHARED,
          expected_s=120, limit_s=500, stand_in=ACTOR),
    Stage("rollout over bare vLLM, 1.5B", "tokens a second, beside LLM.generate", "1.5B",
          "rollout.py", expected_s=60),
    Stage("a base that two processes share, 3B", "bits of two learners; memory of a part; one GPU, "
          "over gloo", "3B", "sharding.py", needs_gb=16, expected_s=120, limit_s=400),
    Stage("packed and padded, 1.5B", "the learner's tokens a second, both backends", "1.5B",
          "learner.py", expected_s=250, limit_s=400, stand_in="PEFT alone"),
    Stage("recipes/colab-t4.toml on 15 GB", "peak against plan, float16", "1.5B",
          flags=t4_recipe(), needs_gb=16, cap_gb=15, expected_s=120, limit_s=400,
          stand_in="PEFT for Unsloth"),
    Stage("tests that need a GPU", "`pytest -m gpu`", None, "tests", limit_s=300,
          stand_in="collected, not run"),
    Stage("GSM8K, Qwen2.5-1.5B", "pass@1 before and after 60 steps of recipes/gsm8k-8.toml", None,
          flags=GSM8K, expected_s=1200, limit_s=3600, needs_weights=True),
)  # fmt: skip


def recipe_stage(name: str) -> Stage:
    """A whole recipe, with its weights and data."""
    measures = "time, memory and result of the whole recipe"
    return Stage(f"recipes/{name}.toml, whole", measures, None, "recipe", {"recipe": name},
                 needs_gb=0, limit_s=1e6, needs_weights=True)  # fmt: skip


def flags_of(stage: Stage, model: Path | None, tiny: bool) -> dict:
    """The flags of a stage's run."""
    flags = stage.flags | ({"model": str(model)} if model else {})
    if not tiny:
        return flags
    if stage.kind == "first":  # a CPU's own resolve, but for the sizes
        return flags | {"max_new_tokens": 16, "num_candidates": 4, "topk": 4}
    engine = {} if flags.get("engine") else {"engine": "vllm"}
    is_alone = stage.kind == "run" and flags.get("number_of_actors") == 0
    engine |= {"cluster": "local"} if is_alone else {}  # a process is enough
    return flags | TINY | engine | (INTERPRETED if stage.interpreted else {})


def as_words(flags: dict) -> list[str]:
    """{"a": 1} -> ["--a", "1"]"""
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def recipe_command(flags: dict, folder: Path) -> list[str]:
    """`unslothrl train --recipe NAME`, or of sft, dpo, rm where the recipe is for that."""
    more = {"output_dir": str(folder), "run_name": "run"}
    program = [sys.executable, "-m", "unslothrl", command_of(flags["recipe"])]
    return [*program, *as_words(flags | more)]


def train_command(flags: dict, folder: Path) -> list[str]:
    more = {"output_dir": str(folder), "run_name": "run"}
    return [sys.executable, "train_distributed.py", *as_words(flags | more)]

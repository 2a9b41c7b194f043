"""The stages of bench/gpu.py and their flags, the most important first."""

import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOISE = f"{ROOT / 'bench' / 'noise.py'}:reward"
JOB = {
    "learner": "grpo", "dataset": "embedded", "reward": NOISE, "max_prompt_tokens": 350,
    "max_new_tokens": 1200, "num_candidates": 16, "topk": 16, "eval_every": 0,
    "max_lora_rank": 32, "lora_alpha": 16, "batch_size": 4, "max_steps": 2,
}  # fmt: skip
# A run of seconds: what fails here fails in every stage.
SMALL = JOB | {
    "max_new_tokens": 128, "num_candidates": 8, "topk": 8, "max_steps": 4, "checkpoint_every": 1,
    "save_every": 1, "eval_every": 2, "eval_problems": 8, "eval_candidates": 2,
}  # fmt: skip
TINY = {  # what a rehearsal changes in every run
    "max_new_tokens": 16, "max_prompt_tokens": 64, "num_candidates": 4, "topk": 4, "batch_size": 2,
    "max_num_seqs": 8, "kv_cache_mb": 64, "backend": "peft", "train_batch_size": 2,
    "dtype": "bfloat16",
}  # fmt: skip
SHARED = {"number_of_actors": 0}  # the learner generates with its own weights
BESIDE = {"number_of_actors": 1, "learner_chunk_size": 0}


@dataclass(frozen=True)
class Stage:
    """One measurement. `card_gb`: the size to which the card is limited. `expected_s`: the seconds
    that must remain of a call for it to begin; after `limit_s` it is ended. `kind`: run, whole,
    peer, tests, or a script of bench/."""

    name: str
    shape: str | None
    kind: str = "run"
    flags: dict = field(default_factory=dict)
    card_gb: int | None = None
    expected_s: float = 90
    limit_s: float = 240
    side: str = ""  # the peer's library: trl or unsloth
    stand_in: str | None = None  # what a rehearsal runs in its place
    interpreted: bool = False  # whether a rehearsal runs Unsloth under Triton's interpreter

    @property
    def slug(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.name.lower()).strip("-")


OVERLAY = Path(sys.prefix) / "unsloth-site"
UNSLOTH = "PEFT for Unsloth, which needs a card"
INTERPRETED = "Unsloth under Triton's interpreter, base in 16 bits; transformers for its vLLM"
ENGINE = f"{UNSLOTH}; transformers for Unsloth's vLLM"


def t4_recipe() -> dict:
    """recipes/colab-t4.toml, on random weights and for two steps."""
    recipe = tomllib.loads((ROOT / "recipes" / "colab-t4.toml").read_text())
    ours = {name: JOB[name] for name in ("dataset", "reward", "max_steps", "eval_every")}
    return {**recipe, **ours, "backend": "unsloth"}


STAGES = (
    Stage("1.5B, whole: train, kill -9, resume, evaluate, ask", "1.5B", "whole",
          SMALL | BESIDE, expected_s=100, limit_s=500, stand_in=UNSLOTH),
    Stage("7B, one process on 16 GB", "7B", flags=JOB | SHARED, card_gb=16, stand_in=ENGINE),
    Stage("7B, actor and learner on 24 GB", "7B", flags=JOB | BESIDE, card_gb=24,
          stand_in=UNSLOTH),
    Stage("1.5B on 8 GB", "1.5B", flags=JOB | SHARED, card_gb=8, expected_s=60,
          stand_in=INTERPRETED, interpreted=True),
    Stage("3B on 12 GB", "3B", flags=JOB | SHARED, card_gb=12, expected_s=60, stand_in=ENGINE),
    Stage("7B, one process, whole card", "7B", flags=JOB | SHARED, stand_in=ENGINE),
    Stage("7B, TRL with colocated vLLM", "7B", "peer", JOB, side="trl",
          stand_in="TRL 1.10, the last for a CPU, without vLLM"),
    Stage("7B, Unsloth's GRPO trainer", "7B", "peer", JOB, side="unsloth",
          stand_in="TRL 1.10 for Unsloth's trainer, which needs a card"),
    Stage("7B, PEFT, actor and learner", "7B", flags=JOB | BESIDE | {"backend": "peft"}),
    Stage("CUDA context and CUDA graphs, 1.5B", "1.5B", "on_card/parts.py", expected_s=60,
          stand_in="resident memory for the card's"),
    Stage("rollout over bare vLLM, 1.5B", "1.5B", "rollout.py", expected_s=60),
    Stage("decode step beside scoring, 1.5B", "1.5B", "scoring.py", expected_s=60),
    Stage("learner, packed and padded, both backends, 1.5B", "1.5B", "learner.py",
          expected_s=250, limit_s=400, stand_in="PEFT alone"),
    Stage("Llama-3.1-8B at 20,000 tokens", "8B",
          flags=JOB | SHARED | {"batch_size": 1, "num_candidates": 2, "topk": 2, "max_steps": 1,
                                "max_new_tokens": 20_000, "train_batch_size": 1,
                                "max_num_seqs": 2},
          card_gb=54, expected_s=150, limit_s=400, stand_in=INTERPRETED, interpreted=True),
    Stage("recipes/colab-t4.toml on 15 GB", "1.5B", flags=t4_recipe(), card_gb=15, expected_s=120,
          limit_s=400, stand_in=UNSLOTH),
    Stage("7B, a whole step of 30 prompts on 16 GB", "7B",
          flags=JOB | SHARED | {"batch_size": 30, "max_steps": 1}, card_gb=16, expected_s=200,
          limit_s=500, stand_in=ENGINE),
    Stage("tests that need a card", None, "tests", limit_s=300,
          stand_in="collected, not run"),
)  # fmt: skip


def flags_of(stage: Stage, model: Path, tiny: bool) -> dict:
    """The flags of a stage's run."""
    flags = stage.flags | {"model": str(model)}
    if not tiny:
        return flags
    flags |= TINY
    if flags.get("number_of_actors") == 0:
        flags["engine"] = "transformers"
    if stage.interpreted:  # tests/unsloth_on_cpu.py has a context of 64 tokens
        flags |= {"max_prompt_tokens": 40, "cluster": "local"}
    return flags


def as_words(flags: dict) -> list[str]:
    """{"a": 1} -> ["--a", "1"]"""
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def train_command(flags: dict, folder: Path) -> list[str]:
    more = {"output_dir": str(folder), "run_name": "run"}
    return [sys.executable, "train_distributed.py", *as_words(flags | more)]

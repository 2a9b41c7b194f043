"""Trains with TRL's GRPOTrainer, or Unsloth's, on the same work as a run of this project.

    python bench/peer.py WORK.json RESULT.json

Run by bench/compare_trl.py and bench/gpu.py. Times every step from the end of the one before to its
end, saves the adapter after each if `adapters` is set (not timed), and writes its measurements.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

work = json.loads(Path(sys.argv[1]).read_text())
if work["side"] == "unsloth":
    os.environ.update(
        {
            "UNSLOTH_DISABLE_STATISTICS": "1",
            "UNSLOTH_COMPILE_LOCATION": str(Path(sys.argv[1]).parent / "unsloth"),
            "UNSLOTH_VLLM_STANDBY": "1",
            "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE": "1",  # use the share of memory that is given
        }
    )
    import unsloth  # isort: skip  (before everything that it patches)

# ruff: noqa: E402
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from unslothrl import rewards
from unslothrl.records import LORA_TARGETS, Completion, Task
from unslothrl.rewards.scorer import Scorer

ON_GPU = torch.cuda.is_available()
SCORER = Scorer(rewards.choose(tuple(work["rewards"])))


def reward(completions, answer, **_) -> list[float]:
    """The summed rewards of this project's run."""
    completed = [
        (Task("", "", gold, "", ()), Completion.of_text(text))
        for text, gold in zip(completions, answer, strict=True)
    ]
    scored = SCORER.score(completed)
    return [sum(values) for values in zip(*scored.rewards.values(), strict=True)]


class Steps(TrainerCallback):
    """Seconds of every step, and its adapter."""

    def __init__(self):
        self.seconds: list[float] = []
        self.began = 0.0

    def on_train_begin(self, args, state, control, **_):
        self.began = time.perf_counter()

    def on_step_end(self, args, state, control, model=None, **_):
        if ON_GPU:
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.began)
        if work["adapters"]:
            model.save_pretrained(Path(work["adapters"]) / f"v{state.global_step:06d}")
        self.began = time.perf_counter()


def trl_model():
    model = AutoModelForCausalLM.from_pretrained(
        work["base"], dtype=torch.bfloat16, device_map="cuda:0" if ON_GPU else "cpu"
    )
    if not ON_GPU:  # else its gradients are wrong, see unslothrl/backends/peft.py
        import bitsandbytes

        for module in model.modules():
            if isinstance(module, bitsandbytes.nn.Linear4bit):
                module.support_avx512bf16_for_cpu = False
    lora = LoraConfig(
        r=work["rank"], lora_alpha=work["alpha"], target_modules=list(LORA_TARGETS),
        task_type="CAUSAL_LM",
    )  # fmt: skip
    return model, lora


def unsloth_model():
    model, _ = unsloth.FastLanguageModel.from_pretrained(
        work["base"], max_seq_length=work["context"], load_in_4bit=True, dtype=torch.bfloat16,
        use_exact_model_name=True, fast_inference=True, max_lora_rank=work["rank"],
        gpu_memory_utilization=work["memory_share"],
    )  # fmt: skip
    return unsloth.FastLanguageModel.get_peft_model(
        model, r=work["rank"], lora_alpha=work["alpha"], target_modules=list(LORA_TARGETS),
        use_gradient_checkpointing="unsloth",
    ), None  # fmt: skip


def with_vllm() -> dict:
    """Options of GRPOConfig: vLLM in the same process. It does not sleep: sleeping would discard
    what bitsandbytes keeps beside the 4-bit weights, which TRL does not load again."""
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": work["memory_share"],
        "vllm_enable_sleep_mode": False,
        "vllm_max_model_length": work["context"],
    }


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(work["base"])
    model, lora = unsloth_model() if work["side"] == "unsloth" else trl_model()
    batch = work["prompts"] * work["candidates"]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=work["folder"],
            max_steps=work["steps"],
            per_device_train_batch_size=work["micro_batch"],
            gradient_accumulation_steps=batch // work["micro_batch"],
            num_generations=work["candidates"],
            max_completion_length=work["new_tokens"],
            temperature=work["temperature"],
            learning_rate=work["lr"],
            lr_scheduler_type="constant",
            loss_type="grpo",
            beta=0.0,
            gradient_checkpointing=work["gradient_checkpointing"],
            use_cpu=not ON_GPU,
            bf16=ON_GPU,
            shuffle_dataset=False,
            save_strategy="no",
            report_to="none",
            logging_steps=1,
            disable_tqdm=True,
            seed=work["seed"],
            **({"optim": "adamw_8bit"} if ON_GPU else {}),
            **(with_vllm() if work["vllm"] else {}),
        ),
        train_dataset=Dataset.from_list(work["tasks"]),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[steps := Steps()],
    )
    trainer.train()
    measured = {
        "seconds": steps.seconds,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "log": [row for row in trainer.state.log_history if "reward" in row],
    }
    Path(sys.argv[2]).write_text(json.dumps(measured))
    SCORER.close()


main()

"""TRL's own losses, gradients and advantages for given tensors, in a process of its own.

    python tests/trl_losses.py IN.json OUT.json BASE      (with TRL 1.10.0 first on PYTHONPATH)

IN.json: {"losses": [{"trainer", "options", "inputs", "logprobs"}], "advantages": [{"trainer",
"options", "rewards"}]}. Arrays are [completions][tokens], padded. For a loss, TRL's `_compute_loss`
gets the log-probabilities from here in place of a model's. For advantages, TRL really generates
with the tiny model in BASE and a reward function that returns the given rewards.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast


def make_trainer(kind: str, base: str, rewards: list[float], candidates: int, **options):
    trainer, config = (getattr(trl, f"{kind.upper()}{part}") for part in ("Trainer", "Config"))
    options = {"max_completion_length": 4, "num_generations": candidates, **options}
    options |= {"per_device_train_batch_size": len(rewards), "gradient_accumulation_steps": 1}
    options |= {"output_dir": tempfile.mkdtemp(), "use_cpu": True, "bf16": False, "report_to": []}
    return trainer(
        model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        reward_funcs=lambda completions, **rest: rewards[: len(completions)],
        args=config(**options),
        train_dataset=Dataset.from_list([{"prompt": f"{i} + 1 ="} for i in range(64)]),
        processing_class=PreTrainedTokenizerFast.from_pretrained(base),
    )


def loss(case: dict, base: str) -> dict:
    """-> {"loss", "gradient" [completions][tokens]}"""
    trainer = make_trainer(case["trainer"], base, [0.0, 1.0], 2, **case["options"])
    logprobs = torch.tensor(case["logprobs"], dtype=torch.float64, requires_grad=True)
    inputs = {name: torch.from_numpy(np.array(given)) for name, given in case["inputs"].items()}
    width = logprobs.shape[1]
    for name, tokens in (("prompt_ids", 1), ("prompt_mask", 1), ("completion_ids", width)):
        inputs[name] = torch.ones(len(logprobs), tokens, dtype=torch.long)
    found = logprobs, torch.zeros_like(logprobs), None
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: found
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    value = trainer._compute_loss(trainer.model, inputs)
    value.backward()
    return {"loss": value.item(), "gradient": logprobs.grad.tolist()}


def advantages(case: dict, base: str) -> list[float]:
    rewards = [reward for group in case["rewards"] for reward in group]
    candidates = len(case["rewards"][0])
    trainer = make_trainer(case["trainer"], base, rewards, candidates, **case["options"])
    rows = [{"prompt": f"{i // candidates} + 1 ="} for i in range(len(rewards))]
    trainer.model.eval()
    return trainer._generate_and_score_completions(rows)["advantages"].tolist()


def main() -> None:
    source, target, base = sys.argv[1:]
    cases = json.loads(Path(source).read_text())
    results = {
        "version": trl.__version__,
        "losses": [loss(case, base) for case in cases["losses"]],
        "advantages": [advantages(case, base) for case in cases["advantages"]],
    }
    Path(target).write_text(json.dumps(results))


if __name__ == "__main__":
    main()

"""One step of each stage with Unsloth, in a process of its own under Triton's interpreter.

    python tests/unsloth_stages_on_cpu.py BASE ROWS PAIRS START START_RM OUT

Runs `unslothrl sft` (padded and packed), `dpo` and `rm` from the adapters START and START_RM over
the 16-bit BASE. Writes OUT/NAME.pt: the step's batches, losses and gradients, and how often
Unsloth's fused functions ran.
"""

import os
import sys
from pathlib import Path

from unsloth_on_cpu import (
    count_fused_calls,
    patch_what_asks_for_a_card,
    pretend_there_is_a_card,
    teach_the_interpreter_bfloat16,
)

CENTRE = 1.0  # with less the two rows' gradients all but cancel, and rounding is what is left
RUNS = {  # name -> command and flags
    "sft": ("sft", {"batch_size": "2"}),  # in two micro-batches
    "packed": ("sft", {"packing": True, "max_length": "120"}),
    "dpo": ("dpo", {"reference": "adapter", "beta": "0.3"}),
    "cached": ("dpo", {"reference": "cached", "beta": "0.3"}),
    "rm": ("rm", {"trl": [f"center_rewards_coefficient={CENTRE}"]}),
}


class Silent:
    def stage(self, text: str) -> None:
        pass


def load_on_cpu(current: list) -> None:
    """Has the stages load a 16-bit base on this machine."""
    import torch

    from unslothrl.backends import unsloth
    from unslothrl.weights import base_model

    plain = unsloth.for_trainer

    def for_trainer(base, **options):
        current[0] = torch.device("cpu", 0)
        options |= {"load_in_4bit": False, "device_map": "cpu", "fast_inference": False}
        # Checkpointing's buffers want a card's pinned memory.
        model = plain(base, use_gradient_checkpointing=False, **options)
        current[0] = 0
        return model

    unsloth.for_trainer = for_trainer
    base_model.prepare = lambda model, *_: Path(model)


def capture(kept: dict) -> None:
    """Has every trainer keep its batches, loss and gradients."""
    import torch

    from unslothrl.offline import training

    for options, trainer in list(training.TRAINERS.items()):

        class Capturing(trainer):
            def training_step(self, model, inputs, *rest):
                batch = {k: v.clone() for k, v in inputs.items() if torch.is_tensor(v)}
                kept["batches"].append(batch)
                loss = super().training_step(model, inputs, *rest)
                kept["losses"].append(loss.item())
                return loss

            def _get_grad_norm(self, model, grad_norm=None):
                trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
                grads = {n: p.grad for n, p in trained.items() if p.grad is not None}
                kept["gradients"] = {name: grad.clone() for name, grad in grads.items()}
                kept["dtypes"] = {str(parameter.dtype) for parameter in trained.values()}
                return super()._get_grad_norm(model, grad_norm)

        training.TRAINERS[options] = Capturing


def main() -> None:
    base, rows, pairs, start, start_rm, out = map(Path, sys.argv[1:])
    os.environ.update(UNSLOTH_COMPILE_DISABLE="1", HF_HUB_OFFLINE="1")
    teach_the_interpreter_bfloat16()
    current = pretend_there_is_a_card()
    from unslothrl.offline.resolve import UNSLOTH, import_first

    import_first(UNSLOTH, Silent())
    patch_what_asks_for_a_card()
    load_on_cpu(current)
    import torch

    from unslothrl.offline.resolve import resolve
    from unslothrl.offline.run import run

    counts = count_fused_calls()
    kept: dict = {}
    capture(kept)
    for name, (command, flags) in RUNS.items():
        kept.update(batches=[], losses=[], gradients={})
        counts.update(dict.fromkeys(counts, 0))
        given = {
            "model": str(base), "dataset": str(rows if command == "sft" else pairs),
            "eval_dataset": (str(pairs),), "output_dir": str(out / "runs"), "run_name": name,
            "max_steps": "1", "batch_size": "1", "train_batch_size": "1", "max_grad_norm": "0",
            "eval_every": "0", "max_lora_rank": "8", "dtype": "bfloat16",
            "backend": "unsloth", "adapter": str(start_rm if command == "rm" else start), **flags,
        }  # fmt: skip
        assert run(resolve(command, given)) == 0
        torch.save({**kept, "counts": dict(counts)}, out / f"{name}.pt")


if __name__ == "__main__":
    main()

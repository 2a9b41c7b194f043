"""Runs that are stopped at an instant of a phase, for tests and bench/survival.py.

`python tests/killed.py PHASE NUMBER DESCRIPTOR -- arguments` is `unslothrl arguments`, which writes
a byte to a descriptor when it enters a phase for the NUMBERth time, and goes on; whoever reads it
may kill the process. What runs is the program as it is: entering a phase is only reported. With
EIGHT_BIT in the environment learners step with bitsandbytes' 8-bit Adam, as they do on cards.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

PHASES = {  # name -> module, class or "", function
    "start": ("unslothrl.runs.rl", "RlRun", "prepare"),
    "ray": ("unslothrl.cluster.joining", "", "start"),
    "load": ("unslothrl.cluster", "LocalCluster", "__init__"),
    "generation": ("unslothrl.training.rollouts", "RolloutStream", "send"),
    "update": ("unslothrl.learners.learner", "Learner", "forward_backward"),
    "updates": ("unslothrl.training.updates", "LearnerGroup", "update"),  # the driver asks for them
    "step": ("unslothrl.learners.learner", "Learner", "step"),
    "publish": ("unslothrl.training.trainer", "Trainer", "publish"),
    "evaluation": ("unslothrl.training.group_source", "Evaluation", "run"),
    "log": ("unslothrl.tracking.run_folder", "RunFolder", "log"),
    "rollouts": ("unslothrl.training.saving", "Saving", "_write_rollouts"),
    "checkpoint": ("unslothrl.checkpoints.store", "Checkpoints", "write"),
    "flush": ("unslothrl.checkpoints.store", "", "flush_tree"),
    "rename": ("unslothrl.checkpoints.store", "", "replace_folder"),
    "latest": ("unslothrl.checkpoints.store", "", "write_whole"),
    "delete": ("unslothrl.checkpoints.store", "Checkpoints", "_delete_older"),
    "adapter": ("unslothrl.tracking.run_folder", "RunFolder", "save_adapter"),
    "truncate": ("unslothrl.tracking.run_folder", "RunFolder", "truncate_after"),
    "end": ("unslothrl.runs.run", "Job", "close"),
}
STAGE_PHASES = {  # the same of `unslothrl sft`, `dpo` and `rm`
    "stage's step": ("unslothrl.offline.trainers", "StageTrainer", "training_step"),
    "stage's log": ("unslothrl.offline.run", "StageRun", "finished"),
    "stage's checkpoint": ("unslothrl.offline.run", "StageCheckpoints", "seal"),
    "stage's adapter": ("unslothrl.offline.run", "StageRun", "save_adapter"),
}


def tell(function: Callable, number: int, descriptor: int) -> Callable:
    """The same function, whose `number`th call is told of."""
    calls = itertools.count(1)

    def told(*arguments: Any, **keywords: Any) -> Any:
        if next(calls) == number:
            os.write(descriptor, b"x")
        return function(*arguments, **keywords)

    return told


def killed_in(phase: str, number: int, arguments: Sequence[str]) -> None:
    """Runs the program, and kills it when it enters `phase` for the `number`th time."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, __file__, phase, str(number), str(writing), "--", *arguments],
        pass_fds=[writing], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(writing)
    entered = os.read(reading, 1)
    process.kill()
    said = process.communicate()[1]
    os.close(reading)
    assert entered and process.returncode == -9, said.decode()[-3000:]


def use_eight_bit_adam() -> None:
    from bitsandbytes.optim import AdamW8bit

    from unslothrl.backends.lora import LoraBackend

    def optimizer(self, parameters, lr, weight_decay):
        return AdamW8bit(parameters, lr=lr, weight_decay=weight_decay, min_8bit_size=256)

    LoraBackend.optimizer = optimizer


def main() -> None:
    phase, number, descriptor, _, *arguments = sys.argv[1:]
    if phase != "none":
        module, owner, name = {**PHASES, **STAGE_PHASES}[phase]
        found = __import__(module, fromlist=["x"])
        target = getattr(found, owner) if owner else found
        setattr(target, name, tell(getattr(target, name), int(number), int(descriptor)))
    if os.environ.get("EIGHT_BIT"):
        use_eight_bit_adam()
    from unslothrl.__main__ import program

    program(arguments)


if __name__ == "__main__":
    main()

"""The folder of a run that was stopped, made without a model, and what resumes it without one."""

import functools
import random
import tempfile
from pathlib import Path

import adapters

from unslothrl.checkpoints import learner_state
from unslothrl.checkpoints.store import Ahead, Checkpoint, RunState
from unslothrl.config.toml_files import to_toml
from unslothrl.runs.resolve import resolve
from unslothrl.system.machine import Machine
from unslothrl.tracking import origin
from unslothrl.training.saving import Boundary, best
from unslothrl.weights import adapter_use

VALID = {  # flags of a small run
    "model": "embedded", "dataset": "embedded", "learner": "grpo", "cluster": "local",
    "engine": "transformers", "number_of_actors": 0, "batch_size": 4, "num_candidates": 4,
    "topk": 4, "max_new_tokens": 16, "max_steps": 2, "eval_problems": 4,
}  # fmt: skip
MACHINE = Machine(cpus=2, ram_mb=16_000, packages=frozenset({"vllm", "ray"}), online=False)
SHAPES = {"a": (4, 8), "b": (8, 4)}  # of the parameters that `learner` trains


def as_flags(options: dict) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


def learner(seed: int = 0):
    """-> (parameters by name, by optimiser; the optimisers): what a learner trains, in small."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    parameters = {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in SHAPES.items()
    }
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.01)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"lora": parameters}, {"lora": optimizer}


@functools.cache
def template() -> Path:
    """A run of 6 steps that was stopped after the fourth, with checkpoints of the third and
    fourth; made once in this process."""
    from report_runs import made_group, make_run, written

    parent = Path(tempfile.mkdtemp(prefix="stopped-run-"))
    made = make_run(parent / "run", 4, prompts=2, candidates=2, length=8, eval_every=2)
    made.lock.release()
    config = resolve({**VALID, "max_steps": 6, "output_dir": str(parent)}, MACHINE).config
    (made.path / "config.toml").write_text(to_toml(config))
    known = origin.Origin("unslothrl --learner grpo", "2026-11-22 08:15", {"torch": "2.13.0"},
                          [origin.Resume(2, "2026-11-22 08:20")])  # fmt: skip
    origin.write(made.path, known)
    evals = [{"step": s, "eval/held_out/pass@1": 0.1 * s, "timing/eval_s": 4.0} for s in (0, 2, 4)]
    for step in (3, 4):
        state = RunState(step=step, position=8 * step, policy_version=step, seconds=9.0 * step,
                         outstanding=[1, 2], batches=[4], evals=evals[: step - 1],
                         data={"train": "problems without end"})  # fmt: skip
        groups = [Ahead(i, 0, made_group(random.Random(i), str(i), 2, 0.5, 4, written))
                  for i in state.outstanding]  # fmt: skip
        made.checkpoints.write(state, learner_state.save(*learner()), step == 4, groups)
    made.write_summary({"status": "interrupted", "steps": 4, "seconds": 36.0})
    (made.path / "trackers.json").write_text('{"tensorboard": "1a2b3c4d"}\n')
    adapter = adapters.write(made.path / "adapters" / "v000004")
    use = adapter_use.Use("embedded", "x", None, 0.6, 0.95, 8)
    (adapter / adapter_use.USE_FILE).write_text(adapter_use.to_json(use))
    return made.path


class Resumed:
    """What `EarlierRun.go_on` needs of a trainer."""

    def __init__(self):
        self.first, self.state = RunState(), RunState()

    def restore(self, checkpoint: Checkpoint, is_changed: bool) -> None:
        trained, optimizers = learner(1)
        learner_state.load(trained, optimizers, checkpoint.learner())
        self.state = checkpoint.state
        Boundary.of(self.state, bytes)
        if self.state.evals:
            best(self.state.evals)

    @property
    def logged(self) -> int:
        return self.state.step - (self.state.unlogged is not None)

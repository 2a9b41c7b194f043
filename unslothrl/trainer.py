"""The loop: draw tasks, roll out, select, update, publish; evaluate and save between steps."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unslothrl import (
    batching,
    checkpoint,
    cluster,
    placement,
)
from unslothrl.algorithms import OBJECTIVES, diagnostics
from unslothrl.checkpoint import RunState
from unslothrl.config import Config
from unslothrl.data.tasks import Data, FiniteTasks
from unslothrl.errors import UserError
from unslothrl.tracking.run_folder import RunFolder, rollout_rows
from unslothrl.tracking.terminal import Terminal
from unslothrl.types import Batch, Group, Sampling, Task, UpdateStats, seed_of


class Trainer:
    """One run over a started cluster."""

    def __init__(
        self,
        config: Config,
        data: Data,
        workers: cluster.Cluster,
        folder: RunFolder,
        view: Terminal,
        steps: int,
    ):
        self.config, self.data, self.workers = config, data, workers
        self.folder, self.view = folder, view
        self.objective = OBJECTIVES[config.learner]
        self.state = RunState()
        self.total_steps = steps
        self.published = None  # the call that holds the newest version, wherever it lies

    def train(self) -> None:
        """Trains to the last step; the state is whole between any two steps."""
        self.sync()
        if self.config.eval_every and not self.state.evals:
            self.log(self.evaluate())
        while self.state.step < self.total_steps:
            metrics = self.step()
            if self.due(self.config.eval_every):
                metrics |= self.evaluate()
            self.log(metrics)
            if self.due(self.config.save_every):
                self.save_adapter()
            if self.due(self.config.checkpoint_every):
                self.save_checkpoint()

    def due(self, every: int | None) -> bool:
        """Whether the finished step is one of every `every` (0: none), or the last."""
        step = self.state.step
        return every not in (None, 0) and (step % every == 0 or step == self.total_steps)

    def step(self) -> dict[str, float]:
        """One batch of tasks: rollout, update, sync. -> the step's metrics."""
        started = time.perf_counter()
        step = self.state.step + 1
        tasks = self.data.train.batch(step, self.config.batch_size)
        groups, metrics = self.rollout(tasks, step)
        if self.config.shuffle_rewards:
            seed = seed_of(self.config.seed, "shuffle", step)
            groups = [batching.shuffle_rewards(g, seed_of(seed, g.task.id)) for g in groups]
        seed = seed_of(self.config.seed, "select", step)
        selected = batching.select(groups, self.objective, self.config.topk, seed)
        metrics |= selected.metrics()
        batch = selected.batch()
        if batch.samples:
            metrics |= self.update(batch)
            self.state.policy_version += 1
            metrics |= self.sync()
        self.folder.write_rollouts(step, rollout_rows(groups, selected.advantages, selected.chosen))
        self.state.step = step
        self.state.samples_seen += sum(len(group.completions) for group in groups)
        metrics["timing/step_s"] = time.perf_counter() - started
        self.state.seconds += metrics["timing/step_s"]
        self.view.step(metrics, step, self.total_steps)
        return metrics

    def rollout(self, tasks: Sequence[Task], step: int) -> tuple[list[Group], dict[str, float]]:
        config = self.config
        sampling = Sampling(
            config.temperature, config.top_p, config.sampling_top_k, config.max_new_tokens
        )
        started = time.perf_counter()
        groups, parts = self.generate(
            tasks, config.num_candidates, sampling, (config.seed, step), "generation"
        )
        seconds = time.perf_counter() - started
        completions = [completion for group in groups for completion in group.completions]
        tokens = sum(len(completion.token_ids) for completion in completions)
        reward_s = max(part.reward_s for part in parts)
        return groups, {
            "reward/mean": mean(total for group in groups for total in group.totals),
            **{
                f"reward/{name}": mean(v for group in groups for v in group.rewards[name])
                for name in groups[0].rewards
            },
            "rollout/score": mean(score for group in groups for score in group.scores),
            "rollout/tokens": tokens,
            "rollout/tokens_per_s": tokens / seconds,
            "rollout/mean_length": tokens / len(completions),
            "rollout/truncated": mean(c.finish_reason == "length" for c in completions),
            "rollout/staleness": self.state.policy_version
            - min(c.policy_version for c in completions),
            "timing/generation_s": seconds - reward_s,
            "timing/reward_s": reward_s,
            "memory/actor_peak_mb": max(part.memory_mb for part in parts),
        }

    def generate(
        self,
        tasks: Sequence[Task],
        candidates: int,
        sampling: Sampling,
        seed: tuple[int | str, ...],
        kind: str,
    ):
        """-> (groups in the order of `tasks`, every generator's Rollout)."""
        generators: Sequence[cluster.Worker] = [*self.workers.actors, *self.workers.learners]
        counts = placement.shares(
            len(tasks),
            len(self.workers.actors),
            len(self.workers.learners),
            self.config.learner_chunk_size,
        )
        if not self.workers.actors:
            generators = self.workers.learners
        calls, start = [], 0
        for worker, count in zip(generators, counts, strict=True):
            if count:
                share = tasks[start : start + count]
                calls.append(worker.call("generate", share, candidates, sampling, seed))
            start += count
        total = len(tasks) * candidates
        parts = self.workers.gather(
            calls, lambda done, tokens: self.view.progress(kind, done, total, tokens)
        )
        return [group for part in parts for group in part.groups], parts

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimiser step over the learners, each with its part of the batch."""
        started = time.perf_counter()
        parts = batching.split_batch(batch, len(self.workers.learners))
        calls = [
            learner.call("forward_backward", part)
            for learner, part in zip(self.workers.learners, parts, strict=False)
        ]
        stats = self.workers.gather(
            calls,
            lambda done, tokens: self.view.progress("update", done, len(batch.samples), tokens),
        )
        gradients = (
            [
                learner.call("gradients")
                for learner, _ in zip(self.workers.learners, parts, strict=False)
            ]
            if len(self.workers.learners) > 1
            else []
        )
        stepped = self.workers.gather(
            [learner.call("optim_step", *gradients) for learner in self.workers.learners]
        )
        return {
            **update_metrics(stats),
            "train/grad_norm": stepped[0]["train/grad_norm"],
            "memory/learner_peak_mb": max(one["memory/learner_peak_mb"] for one in stepped),
            "timing/update_s": time.perf_counter() - started,
        }

    def sync(self) -> dict[str, float]:
        """Publishes the learner's LoRA as this policy version and has every generator load it."""
        started = time.perf_counter()
        self.published = self.workers.learners[0].call("publish", self.state.policy_version)
        everyone = (*self.workers.actors, *self.workers.learners)
        loads = [worker.call("load", self.published) for worker in everyone]
        arrived = self.workers.gather(loads)[: len(self.workers.actors)]
        return {
            "sync/bytes": max(arrived, default=0),
            "timing/sync_s": time.perf_counter() - started,
        }

    def evaluate(self) -> dict[str, float]:
        """pass@1 (mean over candidates) and best-of-n on the held-out tasks, as metrics."""
        config = self.config
        sampling = Sampling(config.eval_temperature, config.eval_top_p, 0, config.max_new_tokens)
        started = time.perf_counter()
        groups, _ = self.generate(
            self.data.eval, config.eval_candidates, sampling, (config.seed, "eval"), "eval"
        )
        prefix = f"eval/{self.data.eval_name}"
        result = {
            f"{prefix}/pass@1": mean(score for group in groups for score in group.scores),
            f"{prefix}/best_of_n": mean(max(group.scores) for group in groups),
            f"{prefix}/mean_length": mean(
                len(c.token_ids) for group in groups for c in group.completions
            ),
            "timing/eval_s": time.perf_counter() - started,
        }
        self.state.evals = [*(self.state.evals or []), {"step": self.state.step, **result}]
        self.view.evaluation(self.state.step, result)
        return result

    def log(self, metrics: dict[str, float]) -> None:
        """One object a step; step 0 has the evaluation before the first."""
        self.folder.log(
            {
                "step": self.state.step,
                "policy_version": self.state.policy_version,
                "samples_seen": self.state.samples_seen,
                **metrics,
            }
        )

    def save_adapter(self) -> Path:
        """Saves the version that was published last, and returns its folder."""
        (adapter,) = self.workers.gather([self.published])
        return self.folder.save_adapter(adapter)

    def save_checkpoint(self) -> None:
        (state,) = self.workers.gather([self.workers.learners[0].call("save_state")])
        with self.folder.checkpoint_dir(self.state.step) as temporary:
            checkpoint.save(temporary, self.state, state)

    def restore(self, path: Path) -> None:
        """Continues from a checkpoint: the next step is the one after it."""
        self.state, learner = checkpoint.load(path)
        self.workers.gather(
            [worker.call("load_state", learner) for worker in self.workers.learners]
        )


def total_steps(config: Config, data: Data) -> int:
    """`--max_steps`, or as many as `--episodes` over a finite data set make, whichever is less."""
    if not isinstance(data.train, FiniteTasks):
        if not config.max_steps:
            raise UserError(
                "max_steps is not set, and the embedded problems never end: set --max_steps 20"
            )
        return config.max_steps
    steps = config.episodes * data.train.steps_per_episode(config.batch_size)
    return min(steps, config.max_steps or steps)


def update_metrics(parts: Sequence[UpdateStats]) -> dict[str, float]:
    """The `train/` metrics of one update from every learner's part."""
    learner = np.concatenate([part.learner_logprobs for part in parts])
    sampler = np.concatenate([part.sampler_logprobs for part in parts])
    return {
        "train/loss": sum(part.loss for part in parts),
        "train/entropy": sum(part.entropy_sum for part in parts) / len(learner),
        "train/clip_fraction": sum(part.clipped for part in parts) / len(learner),
        "train/kl_reference": float(np.concatenate([part.kl for part in parts]).mean()),
        **diagnostics.sampler_agreement(sampler, learner),
    }


def mean(values) -> float:
    return statistics.fmean(values)

"""The loop: draw tasks, roll out, select, update, publish; evaluate and save between steps."""

import copy
import dataclasses
import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unslothrl import batching, cluster, credit
from unslothrl.actor import Rollout
from unslothrl.algorithms import diagnostics, filtering, gae, schedules
from unslothrl.background import Background, DrawnAhead
from unslothrl.checkpoints import run_state as checkpoint
from unslothrl.checkpoints.run_state import RunState
from unslothrl.config.options import Config
from unslothrl.config.parts import objective_of
from unslothrl.credit import Selected
from unslothrl.data.tasks import Data, FiniteTasks
from unslothrl.errors import RunError, UserError
from unslothrl.planning import placement
from unslothrl.tracking.run_folder import RunFolder, rollout_rows
from unslothrl.tracking.terminal import Terminal
from unslothrl.tracking.timer import Timer
from unslothrl.types import (
    Adapter,
    Batch,
    Failure,
    Group,
    Measured,
    Sample,
    Sampling,
    StepResult,
    Task,
    UpdateStats,
    seed_of,
)

MOST_TOLD = 20  # kinds of failed rewards, before the rest is only counted
MOST_SKIPPED = 3  # updates in a row that are not finite, before the run is stopped


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
        self.objective = objective_of(config)
        self.state = RunState()
        self.total_steps = steps
        self.told: set[tuple[str, str]] = set()  # kinds of failed rewards
        self.published = None  # the call that holds the newest version, wherever it lies
        self.tasks = DrawnAhead(data.train)
        self.saving = Background()
        self.timer = Timer()

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
                self.saving.run(self.folder.save_adapter, self.newest_adapter())
            if self.due(self.config.checkpoint_every):
                self.save_checkpoint()
        self.saving.wait()

    def due(self, every: int | None) -> bool:
        """Whether the finished step is one of every `every` (0: none), or the last."""
        step = self.state.step
        return every not in (None, 0) and (step % every == 0 or step == self.total_steps)

    def step(self) -> dict[str, float]:
        """One batch of tasks: rollout, selection, updates, sync. -> the step's metrics."""
        self.timer = Timer()
        step = self.state.step + 1
        groups, left_out, metrics = self.rollout(step)
        selected = self.assign_credit(groups, step)
        metrics |= selected.metrics()
        trained = self.learn(selected, step)
        metrics |= trained
        if trained and not self.is_frozen(step):
            self.state.policy_version += 1
            with self.timer("sync"):
                metrics |= self.sync()
        else:  # no new version is loaded, which would have made room for the actors
            self.workers.gather([one.call("make_room") for one in self.workers.learners])
        self.saving.run(self.save_rollouts, step, selected, left_out)
        self.state.step = step
        every = (*selected.groups, *left_out)
        self.state.samples_seen += sum(len(group.completions) for group in every)
        metrics |= self.timer.metrics()
        self.state.seconds += metrics["timing/step_s"]
        self.view.step(metrics, step, self.total_steps)
        return metrics

    def rollout(self, step: int) -> tuple[list[Group], list[Group], dict[str, float]]:
        """-> (groups that the step trains on, groups left out, metrics of both).

        Groups that the objective filters out are replaced: other prompts are drawn, at most
        `max_resample` times.
        """
        config, wanted = self.config, self.config.batch_size
        kept: list[Group] = []
        left_out: list[Group] = []
        parts: list[Rollout] = []
        draws, missing = 0, wanted
        while missing and draws <= self.objective.max_resample:
            drawn = len(kept) + len(left_out)
            count = filtering.how_many_to_draw(missing, len(kept), drawn, wanted)
            tasks, self.state.position = self.tasks.draw(
                self.state.position, count, is_last=step == self.total_steps
            )
            if draws == 0:
                wanted = len(tasks)  # less than asked for at the end of an episode
            seed = (config.seed, step, draws)
            with self.timer("generation"):
                groups, rolled = self.generate(
                    tasks, config.num_candidates, self.sampling(), seed, "generation"
                )
            self.timer.move(max(part.reward_s for part in rolled), "generation", "reward")
            if config.shuffle_rewards:
                groups = [self.shuffled(group, step) for group in groups]
            parts, draws = parts + rolled, draws + 1
            kept += [group for group in groups if self.keeps(group)]
            left_out += [group for group in groups if not self.keeps(group)]
            missing = max(0, wanted - len(kept))
        every = kept + left_out
        self.check_rewards([one for part in parts for one in part.failures], every)
        metrics = rollout_metrics(every, parts, self.timer.spent["generation"])
        metrics["rollout/staleness"] = self.state.policy_version - min(
            one.policy_version for group in every for one in group.completions
        )
        if self.is_filtering:
            metrics |= {"rollout/resamples": draws - 1, "reward/filtered_groups": len(left_out)}
        return kept[:wanted], left_out + kept[wanted:], metrics

    def check_rewards(self, failures: Sequence[Failure], groups: Sequence[Group]) -> None:
        """Tells of each kind of failed reward once. RunError where more than half have failed."""
        for one in failures:
            if one.kind not in self.told and len(self.told) < MOST_TOLD:
                self.told.add(one.kind)
                self.view.note(str(one))
        completions = sum(len(group.completions) for group in groups)
        for name in sorted({one.reward for one in failures}):
            of_it = [one for one in failures if one.reward == name]
            if len(of_it) > completions / 2:
                advice = ", or set a longer --reward_timeout" if of_it[0].was_late else ""
                raise RunError(
                    f"reward {name} failed on {len(of_it)} of {completions} completions "
                    f"({of_it[0].reason}): fix it{advice}"
                )

    def sampling(self) -> Sampling:
        config = self.config
        return Sampling(
            config.temperature, config.top_p, config.sampling_top_k, config.max_new_tokens
        )

    @property
    def is_filtering(self) -> bool:
        one = self.objective
        return one.filter_low > 0 or one.filter_high < 1 or one.max_resample > 0

    def keeps(self, group: Group) -> bool:
        one = self.objective
        return not self.is_filtering or filtering.keeps(
            group.totals, group.scores, one.filter_low, one.filter_high
        )

    def shuffled(self, group: Group, step: int) -> Group:
        seed = seed_of(self.config.seed, "shuffle", step)
        return credit.shuffle_rewards(group, seed_of(seed, group.task.id))

    def assign_credit(self, groups: Sequence[Group], step: int) -> Selected:
        """Chooses candidates and gives them advantages."""
        config = self.config
        return credit.assign(
            groups,
            self.objective,
            select=config.select,
            topk=config.topk,
            seed=seed_of(config.seed, "select", step),
            measure=self.measure,
            several_updates=config.updates_per_rollout * config.epochs_per_rollout > 1,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )

    def measure(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with what the learners say of them before the update, in order."""
        learners = self.workers.learners
        reference = self.objective.kl != "none"
        shares = [samples[i :: len(learners)] for i in range(len(learners))]
        calls = [
            learner.call("measure", share, reference)
            for learner, share in zip(learners, shares, strict=True)
            if share
        ]
        with self.timer("update"):
            found: list[list[Measured]] = self.workers.gather(
                calls,
                lambda done, tokens: self.view.progress("measuring", done, len(samples), tokens),
            )
        return [
            dataclasses.replace(sample, measured=found[i % len(learners)][i // len(learners)])
            for i, sample in enumerate(samples)
        ]

    def is_frozen(self, step: int) -> bool:
        """Whether only the critic is trained in this step."""
        return step <= self.config.freeze_steps

    def learn(self, selected: Selected, step: int) -> dict[str, float]:
        """The updates of a step. -> their metrics, none if there is nothing to learn from."""
        config = self.config
        if not any(selected.has_gradient):
            self.view.note(
                f"step {step} has nothing to learn from and is skipped: "
                + why_nothing(selected, len(selected.groups))
            )
            return {}
        stats: list[UpdateStats] = []
        results: list[StepResult] = []
        for epoch in range(config.epochs_per_rollout):
            seed = seed_of(config.seed, "parts", step, epoch)
            for batch in batching.batches(
                selected.samples, selected.has_gradient, config.updates_per_rollout, seed
            ):
                with self.timer("update"):
                    of_update, result = self.update(batch, step)
                stats += of_update
                results.append(result)
                self.count_skipped(result, batch, step)
        return {
            **update_metrics(stats, results),
            "train/lr": self.lrs(step)["lora"],
        }

    def update(self, batch: Batch, step: int) -> tuple[list[UpdateStats], StepResult]:
        """One optimiser step over the learners, each with its part of the batch."""
        learners = self.workers.learners
        parts = batching.split_batch(batch, len(learners))
        used = [pair for pair in zip(learners, parts, strict=True) if pair[1].samples]
        stats = self.workers.gather(
            [
                learner.call("forward_backward", part, not self.is_frozen(step))
                for learner, part in used
            ],
            lambda done, tokens: self.view.progress("update", done, len(batch.samples), tokens),
        )
        if not all(np.isfinite(part.loss + part.value_loss) for part in stats):
            calls = [learner.call("discard_gradients") for learner in learners]
        else:
            gradients = [learner.call("gradients") for learner, _ in used if len(learners) > 1]
            lrs = self.lrs(step)
            calls = [learner.call("optim_step", lrs, *gradients) for learner in learners]
        results: list[StepResult] = self.workers.gather(calls)
        most = max(result.memory_mb for result in results)
        return stats, dataclasses.replace(results[0], memory_mb=most)

    def lrs(self, step: int) -> dict[str, float]:
        config = self.config
        share = schedules.share(
            config.lr_schedule, step, self.total_steps, config.warmup_steps, config.lr_floor
        )
        return {"lora": share * config.lr, "critic": share * (config.critic_lr or config.lr)}

    def count_skipped(self, result: StepResult, batch: Batch, step: int) -> None:
        """Raises RunError after too many updates in a row that were not finite."""
        if not result.skipped:
            self.state.skipped_in_a_row = 0
            return
        self.state.skipped_in_a_row += 1
        self.view.note(
            f"step {step}: the loss or its gradient is not finite; nothing was changed "
            f"({self.state.skipped_in_a_row} in a row)"
        )
        if self.state.skipped_in_a_row >= MOST_SKIPPED:
            path = self.folder.write_bad_batch(step, batch)
            raise RunError(
                f"{MOST_SKIPPED} updates in a row had a loss or gradient that is not finite; the "
                f"batch is in {path}: lower --lr, or set --max_grad_norm 0.1 or --dtype float32"
            )

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

    def sync(self) -> dict[str, float]:
        """Publishes the learner's LoRA as this policy version and has every generator load it."""
        self.published = self.workers.learners[0].call("publish", self.state.policy_version)
        everyone = (*self.workers.actors, *self.workers.learners)
        loads = [worker.call("load", self.published) for worker in everyone]
        arrived = self.workers.gather(loads)[: len(self.workers.actors)]
        return {"sync/bytes": max(arrived, default=0)}

    def evaluate(self) -> dict[str, float]:
        """pass@1 (mean over candidates) and best-of-n on every eval set, as metrics."""
        config = self.config
        sampling = Sampling(config.eval_temperature, config.eval_top_p, 0, config.max_new_tokens)
        started = time.perf_counter()
        every = [task for tasks in self.data.evals.values() for task in tasks]
        groups, parts = self.generate(
            every, config.eval_candidates, sampling, (config.seed, "eval"), "eval"
        )
        self.check_rewards([one for part in parts for one in part.failures], groups)
        result: dict[str, float] = {}
        rest = iter(groups)
        for name, tasks in self.data.evals.items():
            result |= eval_metrics(f"eval/{name}", list(itertools.islice(rest, len(tasks))))
        result["timing/eval_s"] = time.perf_counter() - started
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

    def newest_adapter(self) -> Adapter:
        """The version that was published last."""
        (adapter,) = self.workers.gather([self.published])
        return adapter

    def save_adapter(self) -> Path:
        """Saves the newest version when everything else is on disk, and returns its folder."""
        self.saving.wait()
        return self.folder.save_adapter(self.newest_adapter())

    def save_rollouts(self, step: int, selected: Selected, left_out: Sequence[Group]) -> None:
        rows = [
            *rollout_rows(selected.groups, selected.advantages, selected.chosen),
            *rollout_rows(left_out),
        ]
        self.folder.write_rollouts(step, rows)

    def save_checkpoint(self) -> None:
        (learner,) = self.workers.gather([self.workers.learners[0].call("save_state")])
        self.saving.run(self.write_checkpoint, copy.deepcopy(self.state), learner)

    def write_checkpoint(self, state: RunState, learner: bytes) -> None:
        with self.folder.checkpoint_dir(state.step) as temporary:
            checkpoint.save(temporary, state, learner)

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


def rollout_metrics(
    groups: Sequence[Group], parts: Sequence[Rollout], seconds: float
) -> dict[str, float]:
    """The metrics of everything that was generated for a step, in so many seconds."""
    completions = [completion for group in groups for completion in group.completions]
    tokens = sum(len(completion.token_ids) for completion in completions)
    return {
        "reward/mean": mean(total for group in groups for total in group.totals),
        **{
            f"reward/{name}": mean(v for group in groups for v in group.rewards[name])
            for name in groups[0].rewards
        },
        "reward/failed": sum(len(part.failures) for part in parts),
        "rollout/score": mean(score for group in groups for score in group.scores),
        "rollout/tokens": tokens,
        "rollout/tokens_per_s": tokens / seconds,
        "rollout/mean_length": tokens / len(completions),
        "rollout/truncated": mean(c.finish_reason == "length" for c in completions),
        "memory/actor_peak_mb": max(part.memory_mb for part in parts),
    }


def eval_metrics(prefix: str, groups: Sequence[Group]) -> dict[str, float]:
    return {
        f"{prefix}/pass@1": mean(score for group in groups for score in group.scores),
        f"{prefix}/best_of_n": mean(max(group.scores) for group in groups),
        f"{prefix}/mean_length": mean(
            len(one.token_ids) for group in groups for one in group.completions
        ),
    }


def update_metrics(parts: Sequence[UpdateStats], results: Sequence[StepResult]) -> dict[str, float]:
    """The `train/` metrics of a step's updates from every learner's parts."""
    learner = np.concatenate([part.learner_logprobs for part in parts])
    sampler = np.concatenate([part.sampler_logprobs for part in parts])
    metrics = {
        "train/loss": sum(part.loss for part in parts) / len(results),
        "train/entropy": sum(part.entropy_sum for part in parts) / len(learner),
        "train/clip_fraction": sum(part.clipped for part in parts) / len(learner),
        "train/kl_reference": float(np.concatenate([part.kl for part in parts]).mean()),
        "train/correction_truncated": sum(part.corrected for part in parts) / len(learner),
        **diagnostics.sampler_agreement(sampler, learner),
        "train/grad_norm": mean(result.grad_norm for result in results),
        "train/skipped_updates": sum(result.skipped for result in results),
        "memory/learner_peak_mb": max(result.memory_mb for result in results),
    }
    if parts[0].values is not None:
        values = np.concatenate([part.values for part in parts])
        returns = np.concatenate([part.returns for part in parts])
        metrics |= {
            "train/value_loss": sum(part.value_loss for part in parts) / len(results),
            "train/value_explained": gae.explained_variance(values, returns),
            "train/critic_grad_norm": mean(result.critic_grad_norm for result in results),
        }
    return metrics


def why_nothing(selected: Selected, groups: int) -> str:
    """Why a step has no gradient, in words."""
    if not groups:
        return "every group was filtered out (all correct, or none)"
    if not selected.samples:
        return "every completion was truncated"
    return f"in each of its {groups} groups all rewards are equal"


def mean(values) -> float:
    return statistics.fmean(values)

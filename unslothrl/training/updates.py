"""What the learners do in a step: they measure samples, then take one or more optimiser steps."""

from collections.abc import Callable, Sequence

from unslothrl.algorithms import schedules
from unslothrl.checkpoints.run_state import RunState
from unslothrl.config.options import Config
from unslothrl.errors import RunError
from unslothrl.records import Batch, Sample, StepResult, UpdateStats, seed_of
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.tracking.timer import Timer
from unslothrl.training import batching
from unslothrl.training.credit import Selected
from unslothrl.training.learner_group import LearnerGroup
from unslothrl.training.metrics import Metrics, update_metrics
from unslothrl.training.sampler_gap import SamplerGapWatch
from unslothrl.training.tracing import Trace

MOST_SKIPPED = 3  # updates in a row that are not finite, before the run is stopped


class Updates:
    """Of a whole run."""

    def __init__(
        self,
        config: Config,
        learners: LearnerGroup,
        folder: RunFolder,
        view: Terminal,
        total_steps: int,
        stop: Callable[[str, str], None] = lambda name, why: None,
    ):
        """`stop` gets the name of an actor that draws under another policy, and what shows it."""
        self.sampler_gaps = SamplerGapWatch(view.note, stop)
        self.config, self.learners, self.folder, self.view = config, learners, folder, view
        self.total_steps = total_steps

    def measure(self, samples: Sequence[Sample], reference: bool) -> list[Sample]:
        """The samples with what the learners say of them before the first update, in order; with
        `reference` also the reference policy's log-probabilities."""
        return self.learners.measure(
            samples,
            reference,
            lambda done, tokens: self.view.progress("measuring", done, len(samples), tokens),
        )

    def run(
        self, selected: Selected, state: RunState, timer: Timer, trace: Trace | None = None
    ) -> Metrics:
        """All updates of the step after `state`. -> their metrics, none if there is nothing to
        learn from. `trace` gets the log-probabilities that it asks for."""
        config, step = self.config, state.step + 1
        if not any(selected.has_gradient):
            self.view.note(
                f"step {step} has nothing to learn from and is skipped: {why_nothing(selected)}"
            )
            return {}
        stats: list[list[UpdateStats]] = []  # of each update, every learner's part
        results: list[StepResult] = []
        for epoch in range(config.epochs_per_rollout):
            seed = seed_of(config.seed, "parts", step, epoch)
            for batch in batching.batches(
                selected.samples, selected.has_gradient, config.updates_per_rollout, seed
            ):
                if trace is not None:
                    batch = trace.asked(batch)
                with timer("update"):
                    parts, result = self._update(batch, step)
                if result.note:
                    self.view.note(f"step {step}: {result.note}")
                if trace is not None:
                    trace.saw(parts)
                stats.append(parts)
                results.append(result)
                self._count_skipped(result, batch, state)
        return {
            **update_metrics(stats, results),
            **self.sampler_gaps.saw(
                [part.agreement for parts in stats for part in parts], state.policy_version
            ),
            "train/lr": self.learning_rates(step)["lora"],
        }

    def _update(self, batch: Batch, step: int) -> tuple[list[UpdateStats], StepResult]:
        return self.learners.update(
            batch,
            self.learning_rates(step),
            not self.is_frozen(step),
            lambda done, tokens: self.view.progress("update", done, len(batch.samples), tokens),
        )

    def learning_rates(self, step: int) -> dict[str, float]:
        """Of a step, by what they train."""
        config = self.config
        share = schedules.share(
            config.lr_schedule, step, self.total_steps, config.warmup_steps, config.lr_floor
        )
        return {"lora": share * config.lr, "critic": share * (config.critic_lr or config.lr)}

    def is_frozen(self, step: int) -> bool:
        """Whether only the critic is trained in a step."""
        return step <= self.config.freeze_steps

    def _count_skipped(self, result: StepResult, batch: Batch, state: RunState) -> None:
        """Raises RunError after too many updates in a row that were not finite."""
        if not result.skipped:
            state.skipped_in_a_row = 0
            return
        state.skipped_in_a_row += 1
        step = state.step + 1
        self.view.note(
            f"step {step}: the loss or its gradient is not finite; nothing was changed "
            f"({state.skipped_in_a_row} in a row)"
        )
        if state.skipped_in_a_row >= MOST_SKIPPED:
            path = self.folder.write_bad_batch(step, batch)
            raise RunError(
                f"{MOST_SKIPPED} updates in a row had a loss or gradient that is not finite; the "
                f"batch is in {path}: lower --lr, or set --max_grad_norm 0.1 or --dtype float32"
            )


def why_nothing(selected: Selected) -> str:
    """Why a step has no gradient, in words."""
    if not selected.groups:
        return "every group was filtered out (all correct, or none)"
    if not selected.samples:
        return "every completion was truncated"
    return f"in each of its {len(selected.groups)} groups all rewards are equal"

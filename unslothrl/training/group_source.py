"""The groups of a step: tasks are drawn and rolled out, and what the objective filters out is
replaced."""

from collections.abc import Sequence
from dataclasses import dataclass

from unslothrl.algorithms import filtering
from unslothrl.algorithms.objective import Objective
from unslothrl.config import sampling
from unslothrl.config.options import Config
from unslothrl.rewards.failures import FailureReport
from unslothrl.tracking.terminal import Terminal
from unslothrl.tracking.timer import Timer
from unslothrl.training import credit
from unslothrl.training.background import PrefetchedTasks
from unslothrl.training.metrics import Metrics, rollout_metrics
from unslothrl.training.rollouts import RolloutStream
from unslothrl.types import Group, Task, seed_of


@dataclass(frozen=True)
class StepGroups:
    """What was drawn for a step."""

    kept: list[Group]  # to train on
    left_out: list[Group]
    position: int  # of the data, after all that was drawn
    metrics: Metrics  # of both

    @property
    def completions(self) -> int:
        return sum(len(group.completions) for group in (*self.kept, *self.left_out))


class GroupSource:
    """Draws until the batch is full of groups that the objective keeps, at most `max_resample`
    times more than once."""

    def __init__(
        self,
        config: Config,
        objective: Objective,
        tasks: PrefetchedTasks,
        stream: RolloutStream,
        failures: FailureReport,
        view: Terminal,
    ):
        self.config, self.objective, self.tasks = config, objective, tasks
        self.stream, self.failures, self.view = stream, failures, view

    def draw(
        self, step: int, position: int, policy_version: int, timer: Timer, is_last: bool
    ) -> StepGroups:
        """The groups of a step, from `position` in the data on."""
        wanted = self.config.batch_size
        kept: list[Group] = []
        left_out: list[Group] = []
        draws, missing = 0, wanted
        while missing and draws <= self.objective.max_resample:
            drawn = len(kept) + len(left_out)
            count = filtering.how_many_to_draw(missing, len(kept), drawn, wanted)
            tasks, position = self.tasks.draw(position, count, is_last=is_last)
            if draws == 0:
                wanted = len(tasks)  # less than asked for at the end of an episode
            for group in self._roll_out(tasks, step, draws, policy_version, timer):
                (kept if self._keeps(group) else left_out).append(group)
            draws, missing = draws + 1, max(0, wanted - len(kept))
        groups = kept + left_out
        metrics = rollout_metrics(groups, self.failures.check(groups), timer.spent["generation"])
        metrics["memory/actor_peak_mb"] = self.stream.memory_mb
        metrics["rollout/staleness"] = policy_version - min(
            completion.policy_version for group in groups for completion in group.completions
        )
        if self._is_filtering:
            metrics |= {"rollout/resamples": draws - 1, "reward/filtered_groups": len(left_out)}
        return StepGroups(kept[:wanted], left_out + kept[wanted:], position, metrics)

    def _roll_out(
        self, tasks: Sequence[Task], step: int, draw: int, policy_version: int, timer: Timer
    ) -> list[Group]:
        config = self.config
        total = len(tasks) * config.num_candidates
        with timer("generation"):
            seed = (config.seed, step, draw)
            self.stream.send(
                tasks, config.num_candidates, sampling.training(config), seed, policy_version
            )
            groups = self.stream.drain(
                lambda done, tokens: self.view.progress("generation", done, total, tokens)
            )
        timer.move(self.stream.reward_s, "generation", "reward")
        if not config.shuffle_rewards:
            return groups
        seed_of_step = seed_of(config.seed, "shuffle", step)
        return [
            credit.shuffle_rewards(group, seed_of(seed_of_step, group.task.id)) for group in groups
        ]

    @property
    def _is_filtering(self) -> bool:
        objective = self.objective
        return objective.filter_low > 0 or objective.filter_high < 1 or objective.max_resample > 0

    def _keeps(self, group: Group) -> bool:
        return not self._is_filtering or filtering.keeps(
            group.totals, group.scores, self.objective.filter_low, self.objective.filter_high
        )

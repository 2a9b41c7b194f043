"""The groups of a step and of an evaluation: tasks are drawn, rolled out and judged by the run's
reward model, and in a step what the objective filters out is replaced."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from unslothrl import rewards
from unslothrl.algorithms import selection
from unslothrl.algorithms.objective import Objective
from unslothrl.checkpoints.store import Ahead, RunState
from unslothrl.config.options import Config
from unslothrl.config.parts import evaluation_sampling, training_sampling
from unslothrl.data.tasks import EndlessTasks, FiniteTasks
from unslothrl.records import Group, Sample, Task, seed_of
from unslothrl.rewards.reward import IN_LEARNER
from unslothrl.rewards.scorer import FailureReport
from unslothrl.tracking.metrics import Timer
from unslothrl.tracking.terminal import Terminal
from unslothrl.training import credit
from unslothrl.training.metrics import Metrics, eval_metrics, rollout_metrics, staleness_metrics
from unslothrl.training.rollouts import RolloutStream


@dataclass(frozen=True)
class RewardModel:
    name: str
    weight: float
    is_first: bool  # so that its sign is what is reported as correct, too
    judge: Callable[[Sequence[Sample]], Sequence[float]]  # scores whole sequences

    @classmethod
    def of(
        cls, config: Config, judge: Callable[[Sequence[Sample]], Sequence[float]]
    ) -> "RewardModel | None":
        """None where no reward is a model."""
        for index, each in enumerate(rewards.choose(config.reward)):
            if each.runs == IN_LEARNER:
                return cls(each.name, each.weight, index == 0, judge)
        return None

    def judged(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with what the model says of every candidate; 0 of one whose environment
        failed. Of an episode of several sequences the last is judged: it has the whole
        conversation."""
        samples = [
            Sample.of(*completion.sequences(group.task)[-1])
            for group in groups
            for completion in group.completions
            if not completion.is_lost
        ]
        scores, judged = iter(self.judge(samples)), []
        for group in groups:
            found = [0.0 if each.is_lost else next(scores) for each in group.completions]
            earned = {**group.rewards, self.name: tuple(self.weight * score for score in found)}
            right = tuple(float(score > 0) for score in found) if self.is_first else group.scores
            judged.append(replace(group, rewards=earned, scores=right))
        return judged


@dataclass
class GroupSource:
    """Draws until the batch is full of groups that are kept, at most `max_resample` times. Every
    group is drawn under the newest version, and waited for before the update."""

    config: Config
    objective: Objective
    tasks: FiniteTasks | EndlessTasks
    stream: RolloutStream
    failures: FailureReport
    view: Terminal
    total_steps: int
    model: RewardModel | None = None

    def __post_init__(self) -> None:
        self.sampling = training_sampling(self.config)

    def draw(self, state: RunState, timer: Timer) -> tuple[list[Group], list[Group], Metrics]:
        """-> (the groups to train on in the step after `state`, which then says where the data
        stands; those that are left out; the metrics of both)."""
        step, version = state.step + 1, state.policy_version
        wanted = self.config.batch_size
        kept: list[Group] = []
        left_out: list[Group] = []
        draws, missing = 0, wanted
        while missing and draws <= self.objective.max_resample:
            drawn = len(kept) + len(left_out)
            count = selection.how_many_to_draw(missing, len(kept), drawn, wanted)
            groups = self._roll_out(state, count, draws, timer)
            if self.model is not None:
                with timer("reward"):
                    groups = self.model.judged(groups)
            if self.config.shuffle_rewards:
                seed = seed_of(self.config.seed, "shuffle", step)
                groups = [credit.shuffle_rewards(g, seed_of(seed, g.task.id)) for g in groups]
            if draws == 0:
                wanted = len(groups)  # less than asked for at the end of an episode
            for group in groups:
                (kept if self._keeps(group) else left_out).append(group)
            draws, missing = draws + 1, max(0, wanted - len(kept))
        all_groups = kept + left_out
        seconds = self._seconds(timer)
        metrics = rollout_metrics(all_groups, self.failures.check(all_groups), seconds)
        metrics["memory/actor_peak_mb"] = self.stream.memory_mb
        metrics |= staleness_metrics(all_groups, version, self.config.max_staleness)
        metrics |= self._more_metrics()
        if self._is_filtering:
            metrics |= {"rollout/resamples": draws - 1, "reward/filtered_groups": len(left_out)}
        return kept[:wanted], left_out + kept[wanted:], metrics

    def _roll_out(self, state: RunState, count: int, draw: int, timer: Timer) -> list[Group]:
        """Up to `count` groups, the `draw`-th draw of the step after `state`."""
        config, step = self.config, state.step + 1
        if draw == 0 and state.batches:  # drawn ahead by the run with max_staleness before this one
            size, *state.batches = state.batches
            ahead, state.outstanding = state.outstanding[:size], state.outstanding[size:]
            tasks = [self._task_at(position) for position in ahead]
        else:
            tasks, state.position = self.tasks.draw(state.position, count)
        total = len(tasks) * config.num_candidates
        with timer("generation"):
            seed = config.seed, step, draw
            indices = self.stream.send(tasks, config.num_candidates, self.sampling, seed)
            groups = self.stream.wait(
                indices, lambda done, tokens: self.view.progress("generation", done, total, tokens)
            )
        timer.spent["generation"] -= self.stream.reward_s
        timer.spent["reward"] += self.stream.reward_s
        return groups

    def _seconds(self, timer: Timer) -> float:
        """In which the tokens of this step were drawn."""
        return timer.spent["generation"]

    def _more_metrics(self) -> Metrics:
        return {}

    def ahead(self) -> Sequence[Ahead]:
        """The groups that were drawn for later steps, and are complete."""
        return ()

    def restore(self, state: RunState, ahead: Sequence[Ahead] = ()) -> None:
        """Goes on from a checkpoint; `ahead`: groups drawn ahead that were complete."""

    def _task_at(self, position: int) -> Task:
        """One that was drawn before."""
        (task,), _ = self.tasks.draw(position, 1)
        return task

    @property
    def _is_filtering(self) -> bool:
        objective = self.objective
        return objective.filter_low > 0 or objective.filter_high < 1 or objective.max_resample > 0

    def _keeps(self, group: Group) -> bool:
        if not self._is_filtering:
            return True
        totals = [group.totals[i] for i in group.rated]
        scores = [group.scores[i] for i in group.rated]
        low, high = self.objective.filter_low, self.objective.filter_high
        return bool(totals) and selection.keeps(totals, scores, low, high)


@dataclass
class Evaluation:
    """pass@1 and best-of-n on the evaluation sets: the same completions of the same problems every
    time, under the newest version, by the stream that training draws from."""

    config: Config
    sets: Mapping[str, list[Task]]
    stream: RolloutStream
    failures: FailureReport
    view: Terminal
    model: RewardModel | None = None

    def draw(self, kind: str = "eval") -> dict[str, list[Group]]:
        """`eval_candidates` completions of every task. -> set -> groups. `kind`: for display."""
        config = self.config
        tasks = [task for of_set in self.sets.values() for task in of_set]
        total = len(tasks) * config.eval_candidates
        indices = self.stream.send(
            tasks,
            config.eval_candidates,
            evaluation_sampling(config),
            (config.seed, "eval"),
            config.learner_chunk_size if config.learner_evaluates else 0,
        )
        groups = self.stream.wait(
            indices, lambda done, tokens: self.view.progress(kind, done, total, tokens)
        )
        if self.model is not None:
            groups = self.model.judged(groups)
        self.failures.check(groups)
        rest, sizes = iter(groups), {name: len(of_set) for name, of_set in self.sets.items()}
        return {name: list(itertools.islice(rest, size)) for name, size in sizes.items()}

    def run(self) -> tuple[Metrics, dict[str, list[Group]]]:
        """-> (the metrics of every set, with the seconds that they took; what was drawn)."""
        started = time.perf_counter()
        drawn, metrics = self.draw(), Metrics()
        for name, groups in drawn.items():
            metrics |= eval_metrics(f"eval/{name}", groups)
        metrics["timing/eval_s"] = time.perf_counter() - started
        return metrics, drawn

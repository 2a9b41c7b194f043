"""The loop: draw tasks, roll out, assign credit, update, publish; evaluate and save in between."""

import time
from collections.abc import Sequence
from pathlib import Path

from unslothrl.checkpoints import run_state
from unslothrl.checkpoints.run_state import RunState
from unslothrl.cluster.base import Cluster
from unslothrl.cluster.handles import Call
from unslothrl.config.options import Config
from unslothrl.config.parts import objective_of
from unslothrl.data.tasks import Data
from unslothrl.rewards.failures import FailureReport
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.tracking.timer import Timer
from unslothrl.training import credit
from unslothrl.training.background import PrefetchedTasks
from unslothrl.training.balancing import Costs
from unslothrl.training.credit import Selected
from unslothrl.training.evaluation import Evaluation
from unslothrl.training.group_source import GroupSource
from unslothrl.training.learner_group import LearnerGroup
from unslothrl.training.metrics import Metrics
from unslothrl.training.rollouts import RolloutStream
from unslothrl.training.saving import Saving
from unslothrl.training.updates import Updates
from unslothrl.types import Adapter, Group, Sample, seed_of


class Trainer:
    """One run over a started cluster."""

    def __init__(
        self,
        config: Config,
        data: Data,
        cluster: Cluster,
        folder: RunFolder,
        view: Terminal,
        steps: int,
    ):
        self.config, self.cluster, self.folder, self.view = config, cluster, folder, view
        self.objective = objective_of(config)
        self.total_steps = steps
        self.state = RunState()
        self.learners = LearnerGroup(cluster, Costs.of(config))
        self.tasks = PrefetchedTasks(data.train)
        failures = FailureReport(view.note)
        stream = RolloutStream(cluster, config.learner_chunk_size)
        self.source = GroupSource(config, self.objective, self.tasks, stream, failures, view)
        self.updates = Updates(config, self.learners, folder, view, steps)
        self.evaluation = Evaluation(config, data, stream, failures, view)
        self.saving = Saving(folder)
        self.published: Call[Adapter] | None = None  # the newest version, wherever it lies
        self.timer = Timer()

    def train(self) -> None:
        """Trains to the last step; the state is whole between any two steps."""
        self.publish()
        if self.config.eval_every and not self.state.evals:
            self.log(self.evaluate())
        while self.state.step < self.total_steps:
            metrics = self.step()
            if self.is_due(self.config.eval_every):
                metrics |= self.evaluate()
            self.log(metrics)
            if self.is_due(self.config.save_every):
                self.saving.adapter(self.newest_adapter())
            if self.is_due(self.config.checkpoint_every):
                self.saving.checkpoint(self.state, self.learners.save_state())
        self.saving.wait()

    def step(self) -> Metrics:
        """One batch of tasks: rollout, credit, updates, a new version. -> its metrics."""
        self.timer = Timer()
        state, step = self.state, self.state.step + 1
        groups = self.source.draw(
            step, state.position, state.policy_version, self.timer, step == self.total_steps
        )
        selected = self.assign_credit(groups.kept, step)
        trained = self.updates.run(selected, state, self.timer)
        metrics = {**groups.metrics, **selected.metrics(), **trained}
        if trained and not self.updates.is_frozen(step):
            state.policy_version += 1
            with self.timer("sync"):
                metrics |= self.publish()
        else:  # no new version is loaded, which would have made room for the actors
            self.learners.make_room()
        self.saving.rollouts(step, groups, selected)
        metrics |= self.timer.metrics()
        state.step, state.position = step, groups.position
        state.samples_seen += groups.completions
        state.seconds += metrics["timing/step_s"]
        self.view.step(metrics, step, self.total_steps)
        return metrics

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
            several_updates=config.updates_per_step > 1,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )

    def measure(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with what the learners say of them before the update, in order."""
        with self.timer("update"):
            return self.updates.measure(samples, self.objective.kl != "none")

    def publish(self) -> Metrics:
        """Has every generator load the learners' LoRA as this policy version. -> metrics: bytes,
        and the seconds until the version was in the object store (`put_s`), then on the last
        actor's node (`fetch_s`), then in the slowest actor's engine (`load_s`)."""
        started = time.perf_counter()
        self.published = self.learners.publish(self.state.policy_version)
        actors, learners = self.cluster.actors, self.cluster.learners
        self.cluster.wait([self.published])
        put_s = time.perf_counter() - started
        loads = [generator.load(self.published) for generator in (*actors, *learners)]
        loaded = self.cluster.gather(loads)[: len(actors)]
        return {
            "sync/bytes": max((each.bytes for each in loaded), default=0),
            "sync/put_s": put_s,
            "sync/fetch_s": max((each.fetch_s for each in loaded), default=0.0),
            "sync/load_s": max((each.load_s for each in loaded), default=0.0),
        }

    def evaluate(self) -> Metrics:
        """The evaluation of the newest version, which the state keeps."""
        metrics = self.evaluation.run(self.state.policy_version)
        self.state.evals = [*(self.state.evals or []), {"step": self.state.step, **metrics}]
        self.view.evaluation(self.state.step, metrics)
        return metrics

    def is_due(self, every: int | None) -> bool:
        """Whether the finished step is one of every `every` (0: none), or the last."""
        step = self.state.step
        return every not in (None, 0) and (step % every == 0 or step == self.total_steps)

    def log(self, metrics: Metrics) -> None:
        """One object a step; step 0 has the evaluation before the first."""
        state = self.state
        counts = {"policy_version": state.policy_version, "samples_seen": state.samples_seen}
        self.folder.log({"step": state.step, **counts, **metrics})

    def newest_adapter(self) -> Adapter:
        """The version that was published last."""
        assert self.published is not None, "nothing is published before `train`"
        (adapter,) = self.cluster.gather([self.published])
        return adapter

    def save_last_adapter(self) -> Path:
        """Saves the newest version when everything else is on disk. -> its folder."""
        return self.saving.last_adapter(self.newest_adapter)

    def restore(self, path: Path) -> None:
        """Continues from a checkpoint: the next step is the one after it."""
        self.state, learner = run_state.load(path)
        self.learners.load_state(learner)

"""The loop: draw tasks, roll out, assign credit, update, publish; evaluate and save in between."""

import copy
import time
from collections.abc import Sequence
from pathlib import Path

from unslothrl.checkpoints import run_state
from unslothrl.checkpoints.run_state import RunState
from unslothrl.cluster.base import Cluster
from unslothrl.cluster.checks import Checks
from unslothrl.cluster.handles import Call
from unslothrl.config.options import Config
from unslothrl.config.parts import objective_of
from unslothrl.data.tasks import Data
from unslothrl.errors import HeadLost, ProcessLost, RunError
from unslothrl.rewards.failures import FailureReport
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.tracking.timer import Timer
from unslothrl.tracking.tracked import Trackers
from unslothrl.training import credit
from unslothrl.training.background import PrefetchedTasks
from unslothrl.training.balancing import Costs
from unslothrl.training.credit import Selected
from unslothrl.training.evaluation import Evaluation
from unslothrl.training.group_source import GroupSource, SynchronousSource
from unslothrl.training.learner_group import LearnerGroup
from unslothrl.training.metrics import Metrics
from unslothrl.training.overlap import OverlappedSource
from unslothrl.training.pieces import Pieces
from unslothrl.training.profile import Profile
from unslothrl.training.rollouts import RolloutStream
from unslothrl.training.saving import Saving
from unslothrl.training.tracing import is_traced
from unslothrl.training.updates import Updates
from unslothrl.types import Adapter, Group, Loaded, Sample, seed_of

MOST_RECOVERIES = 3  # of the learners, without a step in between


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
        checks: Checks | None = None,
        trackers: Trackers | None = None,
        pieces: Pieces | None = None,
    ):
        """`pieces` gives tokens their texts, for the report; without it none are shown there."""
        self.config, self.cluster, self.folder, self.view = config, cluster, folder, view
        self.objective = objective_of(config)
        self.total_steps = steps
        self.state = RunState()
        self.learners = LearnerGroup(cluster, Costs.of(config))
        self.tasks = PrefetchedTasks(data.train)
        failures = FailureReport(view.note)
        self.checks = checks or Checks()
        self.stream = RolloutStream(
            cluster,
            config.learner_chunk_size,
            note=view.note,
            checks=self.checks,
            min_actors=config.min_actors,
            overlaps=config.max_staleness > 0,
            groups_at_once=max(1, config.sequences_at_once // config.num_candidates) + 1,
        )
        source = OverlappedSource if config.max_staleness else SynchronousSource
        self.source: GroupSource = source(
            config, self.objective, self.tasks, self.stream, failures, view, steps
        )
        self.updates = Updates(config, self.learners, folder, view, steps, self.stream.pool.stop)
        self.evaluation = Evaluation(config, data.evals, self.stream, failures, view)
        self.saving = Saving(folder, pieces, view.note)
        self.trackers = trackers or Trackers()
        self.profile = Profile(config.profile, cluster, folder, view)
        self.published: Call[Adapter] | None = None  # the newest version, wherever it lies
        self.loaded: list[Loaded] = []  # what the processes said of it
        self.boundary = self.state  # as it was after the last whole step
        self.is_updating = False  # from the first update of a step until the step is done
        self.recoveries, self.recovered_at = 0, -1  # in a row, and after which step
        self.timer = Timer()

    def train(self) -> None:
        """Trains to the last step; the state is whole between any two steps."""
        while self.published is None or self.state.step < self.total_steps:
            self.boundary = copy.deepcopy(self.state)
            try:
                if self.published is None:
                    self.publish()
                if self.config.eval_every and not self.state.evals:
                    self.log(self.evaluate())
                    self.saving.report()
                self.train_step()
            except ProcessLost as error:
                self.recover(error)
            except RunError as error:
                if isinstance(error, HeadLost) or self.stream.pool.failure is not None:
                    self.save_whole_steps()
                raise
        self.saving.wait()

    def train_step(self) -> None:
        """One step, and what is due after it."""
        self.profile.begin(self.state.step + 1, self.total_steps)
        metrics = self.step()
        self.profile.end(self.state.step, metrics)
        try:
            if self.is_due(self.config.eval_every):
                metrics |= self.evaluate()
        finally:  # the step is done, whatever ends its evaluation
            self.log(metrics)
        if self.is_due(self.config.eval_every):
            self.saving.report()
        if self.is_due(self.config.save_every):
            self.saving.adapter(self.newest_adapter())
        if self.is_due(self.config.checkpoint_every):
            self.saving.checkpoint(self.state, self.learners.save_state())

    def step(self) -> Metrics:
        """One batch of tasks: rollout, credit, updates, a new version. -> its metrics."""
        self.timer = Timer()
        state, step = self.state, self.state.step + 1
        groups = self.source.draw(state, self.timer)
        selected = self.assign_credit(groups.kept, step)
        trace = self.saving.trace(selected, groups, is_traced(step, self.total_steps))
        self.is_updating = True
        trained = self.updates.run(selected, state, self.timer, trace)
        metrics = {**groups.metrics, **selected.metrics(), **trained}
        if trained and not self.updates.is_frozen(step):
            state.policy_version += 1
            with self.timer("sync"):
                metrics |= self.publish()
        else:  # no new version is loaded, which would have made room for the actors
            self.learners.make_room()
        self.saving.rollouts(step, groups, selected, trace)
        metrics |= self.timer.metrics()
        state.step, self.is_updating = step, False
        state.samples_seen += groups.completions
        state.seconds += metrics["timing/step_s"]
        self.view.step(metrics, step, self.total_steps)
        self.view.sample(groups.kept or groups.left_out)
        self.cluster.report(step, self.total_steps, metrics)
        return metrics

    def save_whole_steps(self) -> None:
        """A checkpoint of the last step that was done, unless the learners are in the next one."""
        if not self.is_updating:
            is_done = self.state.step > self.boundary.step
            state = self.state if is_done else self.boundary
            self.saving.checkpoint(state, self.learners.save_state())
            self.saving.wait()

    def recover(self, error: ProcessLost) -> None:
        """A learner is lost: all of them start again from the last checkpoint, as a run that is
        resumed does. Raises `error` where that has been in vain, or something else is lost."""
        names = [learner.name for learner in self.cluster.learners]
        self.recoveries = self.recoveries + 1 if self.recovered_at == self.boundary.step else 1
        if error.name not in names or self.cluster.is_local or self.recoveries > MOST_RECOVERIES:
            raise error
        self.recovered_at = self.boundary.step
        self.saving.wait()
        checkpoint = self.folder.latest_checkpoint()
        where = f"step {run_state.load(checkpoint)[0].step}" if checkpoint else "the start"
        self.view.note(f"{error}: all learners start again from {where}")
        try:
            self.start_learners_again(checkpoint)
        except ProcessLost as again:
            self.recover(again)

    def start_learners_again(self, checkpoint: Path | None) -> None:
        """Gives the run new learners, which go on from a checkpoint or from the beginning."""
        self.cluster.restart_learners()
        self.learners.renew()
        self.stream.pool.renew_learners()
        self.checks.check_all(self.cluster, self.cluster.learners)
        self.stream.reset()
        if checkpoint is not None:
            self.restore(checkpoint)
        else:
            self.state = RunState(evals=self.state.evals)
            self.source.restore(self.state)
        self.is_updating = False
        self.folder.truncate_after(self.state.step)
        self.publish()

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
        actor's node (`fetch_s`), then in the slowest actor's engine (`load_s`); of the version
        before where actors load this one while they generate."""
        started = time.perf_counter()
        self.published = self.learners.publish(self.state.policy_version)
        self.cluster.wait([self.published])
        put_s = time.perf_counter() - started
        before = self.loaded
        self.loaded = self.stream.publish(self.published, self.state.policy_version)
        loaded = before if self.stream.overlaps else self.loaded
        return {
            "sync/bytes": max((each.bytes for each in loaded), default=0),
            "sync/put_s": put_s,
            "sync/fetch_s": max((each.fetch_s for each in loaded), default=0.0),
            "sync/load_s": max((each.load_s for each in loaded), default=0.0),
        }

    def evaluate(self) -> Metrics:
        """The evaluation of the newest version, which the state keeps."""
        metrics, drawn = self.evaluation.run()
        self.saving.evaluation(self.state.step, drawn)
        self.trackers.samples(self.state.step, drawn)
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
        row = {"step": state.step, **counts, **metrics}
        self.folder.log(row)
        self.trackers.log(state.step, row)

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
        self.source.restore(self.state)

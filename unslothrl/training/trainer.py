"""The loop: draw tasks, roll out, assign credit, update, publish; evaluate and save in between."""

import contextlib
import copy
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unslothrl.checkpoints.store import Checkpoint, RunState
from unslothrl.cluster.handles import Call, Checks, Cluster
from unslothrl.config.options import Config
from unslothrl.config.parts import objective_of
from unslothrl.data.tasks import Data
from unslothrl.errors import AdapterDamaged, ProcessLost, RunError
from unslothrl.records import Group, Sample, seed_of
from unslothrl.rewards.scorer import FailureReport
from unslothrl.system import stopping
from unslothrl.tracking.metrics import Timer
from unslothrl.tracking.run_folder import RunFolder
from unslothrl.tracking.terminal import Terminal
from unslothrl.training import credit
from unslothrl.training.group_source import Evaluation, GroupSource, RewardModel
from unslothrl.training.metrics import Metrics, Pieces, Trace, is_traced, selection_metrics
from unslothrl.training.rollouts import RolloutStream
from unslothrl.training.saving import Boundary, Saving
from unslothrl.training.updates import Costs, LearnerGroup, Updates
from unslothrl.weights.adapter import Adapter

if TYPE_CHECKING:  # not loaded where nothing asks for them
    from unslothrl.tracking.profiler import Profile
    from unslothrl.tracking.trackers import Trackers

MOST_RECOVERIES = 3  # of the learners, without a step in between
Whole = Boundary | Checkpoint  # after a step: what a run goes on from


def source_kind(config: Config) -> type[GroupSource]:
    """Of the groups to train on."""
    if not config.max_staleness:
        return GroupSource
    from unslothrl.training.overlap import OverlappedSource

    return OverlappedSource


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
        trackers: "Trackers | None" = None,
        pieces: Pieces | None = None,
        first: RunState | None = None,
    ):
        """`pieces` gives tokens their texts, for the report; without it none are shown there.
        `first`: before the first step, with what identifies the data and the base."""
        self.config, self.cluster, self.folder, self.view = config, cluster, folder, view
        self.objective = objective_of(config)
        self.total_steps = steps
        self.checks = checks or Checks()
        self.first = first or RunState()
        self.state = copy.deepcopy(self.first)
        self.learners = LearnerGroup(
            cluster, Costs.of(config), config.learners_per_part, view.progress
        )
        failures = FailureReport(view.note)
        self.stream = RolloutStream(
            cluster,
            config.learner_chunk_size,
            note=view.note,
            checks=self.checks,
            min_actors=config.min_actors,
            overlaps=config.max_staleness > 0,
            groups_at_once=max(1, config.sequences_at_once // config.num_candidates) + 1,
        )
        model = RewardModel.of(config, self.learners.judge)
        self.source = source_kind(config)(
            config, self.objective, data.train, self.stream, failures, view, steps, model
        )
        self.updates = Updates(config, self.learners, folder, view, steps, self.stream.pool.stop)
        self.evaluation = Evaluation(config, data.evals, self.stream, failures, view, model)
        self.saving = Saving(
            folder, pieces, view.note, config.checkpoint_every, config.keep_rollouts
        )
        self.trackers = trackers
        self.profile: Profile | None = None
        if config.profile:
            from unslothrl.tracking import profiler

            self.profile = profiler.Profile(config.profile, cluster, folder, view)
        self.published: Call[Adapter] | None = None  # the newest version, wherever it lies
        self.loaded: list[Metrics] = []  # what the processes said of it
        self.boundary: Boundary | None = None  # after the last whole step
        self.recoveries = 0  # in a row
        self.restart: list[Whole | None] = []  # where lost learners start again; empty: none is
        self.timer = Timer()

    def train(self) -> None:
        """Trains to the last step, each as a whole: see `boundary`."""
        while self.restart or self.published is None or not self.is_done:
            try:
                if self.restart:
                    self.start_learners_again(self.restart[0])
                if self.published is None:
                    self.publish()
                if self.boundary is None:
                    self.mark(self.cluster.learners[0].save_state())
                if self.config.eval_every and not self.state.evals and not self.state.unlogged:
                    metrics = self.evaluate()
                    with stopping.held():
                        self.log(metrics)
                        self.mark()
                    self.saving.report(is_due=True)
                elif self.state.unlogged is not None:  # of the step that was resumed from
                    self.conclude()
                elif not self.is_done:  # a resumed run may have been killed after its last step
                    if self.profile is not None:
                        self.profile.begin(self.state.step + 1, self.total_steps)
                    metrics = self.step()
                    if self.profile is not None:
                        self.profile.end(self.state.step, metrics)
                    self.conclude()
            except ProcessLost as error:
                self.recover(error)
        self.saving.wait()

    @property
    def is_done(self) -> bool:
        return self.state.step >= self.total_steps and self.state.unlogged is None

    def mark(self, learner: Call[bytes] | None = None) -> None:
        """The state is whole: a run may go on from here. `learner`: what the learners hold."""
        ahead = self.source.ahead()
        if learner is not None:
            self.boundary = Boundary.of(self.state, self.cluster.later(learner), ahead)
        elif self.boundary is not None:
            self.boundary = Boundary.of(self.state, self.boundary.learner, ahead)

    def conclude(self) -> None:
        """What is due after a step: its evaluation, and what is written."""
        state = self.state
        assert state.unlogged is not None and self.boundary is not None
        metrics: Metrics = dict(state.unlogged)
        evaluates = self.is_due(self.config.eval_every)
        is_saved = self.saving.is_checkpoint_due(state.step, self.total_steps)
        if is_saved and evaluates:  # which takes its time
            self.saving.checkpoint(self.boundary)
        try:
            if evaluates:
                metrics |= self.evaluate()
        except BaseException:
            self.log(metrics)  # as far as it is known, until the run is resumed
            raise
        with stopping.held():
            self.log(metrics)
            state.unlogged = None
            self.mark()
        if self.is_due(self.config.save_every):
            self.saving.adapter(self.newest_adapter())
        # last, as a run that goes on from it writes nothing of this step again
        if is_saved or (evaluates and self.boundary.is_best):
            self.saving.checkpoint(self.boundary)
        self.saving.report(is_due=evaluates)

    def step(self) -> Metrics:
        """One batch of tasks: rollout, credit, updates, a new version. -> its metrics."""
        self.timer = Timer()
        state, step = self.state, self.state.step + 1
        kept, left_out, drawn = self.source.draw(state, self.timer)
        groups, samples = self.assign_credit(kept, step)
        is_shown = self.saving.pieces is not None and is_traced(step, self.total_steps)
        trace = Trace([*groups, *left_out], samples) if is_shown else None
        trained = self.updates.run(groups, samples, state, self.timer, trace)
        metrics = {**drawn, **selection_metrics(groups), **trained}
        if trained and not self.updates.is_frozen(step):
            state.policy_version += 1
            with self.timer("sync"):
                metrics |= self.publish()
        else:  # no new version is loaded, which would have made room for the actors
            self.learners.make_room()
        self.saving.rollouts(step, [*groups, *left_out], trace)
        metrics |= self.timer.metrics()
        with stopping.held():
            state.step, state.unlogged = step, metrics
            state.samples_seen += sum(len(group.completions) for group in kept + left_out)
            state.seconds += metrics["timing/step_s"]
            self.mark(self.cluster.learners[0].save_state() if trained else None)
        self.recoveries = 0
        self.view.step(metrics, step, self.total_steps)
        self.view.sample(kept or left_out)
        return metrics

    def save_boundary(self) -> bool:
        """A checkpoint of the last whole step, unless there is one. -> whether there is one now.
        What could not be written before is no reason not to try."""
        with contextlib.suppress(OSError, RunError):
            self.saving.wait()
        if self.boundary is not None and self.saving.saved is not self.boundary:
            self.saving.checkpoint(self.boundary)
            self.saving.wait()
        return self.boundary is not None and self.saving.saved is self.boundary

    def recover(self, error: ProcessLost) -> None:
        """A learner is lost: all of them start again from the last whole step, as a run that is
        resumed does. Raises `error` where that has been in vain, or something else is lost."""
        self.recoveries += 1
        names = [learner.name for learner in self.cluster.learners]
        if error.name not in names or self.cluster.is_local or self.recoveries > MOST_RECOVERIES:
            raise error
        start = self.last_whole()
        where = f"step {start.state.step}" if start else "the start"
        self.view.note(f"{error}: all learners start again from {where}")
        self.restart = [start]

    def last_whole(self) -> Whole | None:
        """The boundary, or, where that is lost with a learner, the newest checkpoint."""
        self.saving.wait()
        if self.boundary is not None:
            with contextlib.suppress(RunError):
                learner = self.boundary.learner()
                return dataclasses.replace(self.boundary, learner=lambda: learner)
        return self.folder.checkpoints.newest(self.view.note)

    def start_learners_again(self, start: Whole | None) -> None:
        """Gives the run new learners, which go on from a whole step or from the beginning."""
        self.cluster.restart_learners()
        self.learners.renew()
        self.stream.pool.renew_learners()
        self.checks.check_all(self.cluster, self.cluster.learners)
        self.stream.reset()
        if start is not None:
            self.go_on(start)
        else:
            done = [row for row in self.state.evals or [] if row["step"] <= self.first.step]
            self.state = dataclasses.replace(copy.deepcopy(self.first), evals=done)
            self.boundary = None
            self.source.restore(self.state)
        logged = self.state.step - (self.state.unlogged is not None)  # with all its metrics
        self.folder.truncate_after(self.state.step, logged, self.state.policy_version)
        self.published, self.restart = None, []

    def assign_credit(self, groups: Sequence[Group], step: int) -> tuple[list[Group], list[Sample]]:
        seed = seed_of(self.config.seed, "select", step)
        return credit.assign(groups, self.objective, self.config, seed, self.measure)

    def measure(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with what the learners say of them before the update, in order."""
        with self.timer("update"):
            return self.learners.measure(samples, self.objective.kl != "none")

    def publish(self) -> Metrics:
        """Has every generator load the learners' LoRA as this policy version. -> metrics: bytes,
        and the seconds until the version was in the object store (`put_s`), then on the last
        actor's node (`fetch_s`), then in the slowest actor's engine (`load_s`); of the version
        before where actors load this one while they generate."""
        started = time.perf_counter()
        self.published = self.cluster.learners[0].publish(self.state.policy_version)
        self.cluster.wait([self.published])
        put_s = time.perf_counter() - started
        before = self.loaded
        self.loaded = self.stream.publish(self.published, self.state.policy_version)
        loaded = before if self.stream.overlaps else self.loaded
        return {
            "sync/bytes": max((each["bytes"] for each in loaded), default=0),
            "sync/put_s": put_s,
            "sync/fetch_s": max((each["fetch_s"] for each in loaded), default=0.0),
            "sync/load_s": max((each["load_s"] for each in loaded), default=0.0),
        }

    def evaluate(self) -> Metrics:
        """The evaluation of the newest version, which the state keeps."""
        metrics, drawn = self.evaluation.run()
        self.saving.evaluation(self.state.step, drawn)
        if self.trackers is not None:
            self.trackers.samples(self.state.step, drawn)
        self.state.evals = [*(self.state.evals or []), {"step": self.state.step, **metrics}]
        self.view.evaluation(self.state.step, metrics, drawn)
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
        if self.trackers is not None:
            self.trackers.log(state.step, row)

    def newest_adapter(self) -> Adapter:
        assert self.published is not None, "nothing is published before `train`"
        (adapter,) = self.cluster.gather([self.published])
        try:
            adapter.verify()
        except AdapterDamaged:
            self.published = self.cluster.learners[0].publish_again()
            (adapter,) = self.cluster.gather([self.published])
            adapter.verify()
        return adapter

    def save_last_adapter(self) -> Path:
        """Saves the newest version when everything else is on disk. -> its folder."""
        self.saving.wait()
        return self.folder.save_adapter(self.newest_adapter())

    def restore(self, checkpoint: Checkpoint, is_changed: bool = False) -> None:
        """Continues from a checkpoint: the next step is the one after it. `is_changed`: options
        are not as they were, so that what was drawn ahead is drawn again."""
        self.go_on(dataclasses.replace(checkpoint, ahead=()) if is_changed else checkpoint)
        self.saving.saved = self.boundary

    def go_on(self, whole: Whole) -> None:
        first, learner = self.first, whole.learner()
        self.state = dataclasses.replace(
            copy.deepcopy(whole.state), data=first.data, base=first.base, versions=first.versions
        )
        self.boundary = Boundary.of(self.state, lambda: learner, whole.ahead)
        learners = self.cluster.learners
        self.cluster.gather([each.load_state(learner) for each in learners])
        self.source.restore(self.state, whole.ahead)

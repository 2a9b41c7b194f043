"""A run of reinforcement learning: check, start, train, and save what there is at the end."""

import contextlib
import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from unslothrl import cluster, rewards
from unslothrl.checkpoints.store import RunState
from unslothrl.cluster import joining
from unslothrl.cluster.build import data_options, scorer_of
from unslothrl.cluster.handles import Checks, Cluster
from unslothrl.config.options import Config
from unslothrl.config.parts import objective_of
from unslothrl.data import tasks
from unslothrl.data.tasks import Data, FiniteTasks
from unslothrl.errors import RunError, UserError
from unslothrl.files import expanded
from unslothrl.planning.fit import check_division
from unslothrl.planning.place import place
from unslothrl.planning.placement import Resources
from unslothrl.runs import resume
from unslothrl.runs.resolve import Resolved
from unslothrl.runs.run import EarlierRun, Job, ends_early
from unslothrl.system import variables
from unslothrl.system.machine import Machine
from unslothrl.tracking import origin
from unslothrl.tracking.terminal import Terminal
from unslothrl.training import trial
from unslothrl.training.metrics import Pieces
from unslothrl.training.saving import best
from unslothrl.training.trainer import Trainer
from unslothrl.training.trial import facts, header
from unslothrl.weights import adapter_use, base_model, starting_adapter
from unslothrl.weights.shapes import is_hub_id


class RlRun(Job):
    """The main job. After `prepare`: its `base`, `data`, `prints` of that, `level` and `steps`."""

    options: Config
    cluster: Cluster | None = None
    trainer: Trainer | None = None
    base_hash = ""
    machine = Machine()

    def prepare(self) -> None:
        """Everything before the first process, with what takes long on the display. UserError."""
        config, view = self.options, self.view
        check_without_data(config, view)
        notes: list[str] = []
        parts = resume.base_parts_of(config, notes, judges_of(config))
        self.base = base_model.prepare(config.model, view.stage)
        view.stage("reading the tokenizer")
        tokenizer = base_model.load_tokenizer(self.base)
        view.stage(f"reading {config.dataset}")
        options = data_options(config)
        self.data = data = tasks.load(options, tokenizer)
        view.stage("trying the rewards")
        task = trial.shortest(data)
        self.level = check_rewards(config, data, notes.append)
        trial.try_environment(config, task, tokenizer)
        self.steps = total_steps(config, data)
        notes += ends_early(config.max_steps, self.steps, config.episodes)
        if config.ray_address is None:
            resources = Resources.of_machine(config, self.machine)
            place(config, resources, base_mb=base_model.size_mb(self.base))  # may refuse
        if config.lora_save_path is not None:
            expanded(config.lora_save_path).mkdir(parents=True, exist_ok=True)
        self.prints = tasks.fingerprints_of(data)
        use = adapter_use.of_run(config, options.system_prompt, tokenizer)
        use = replace(use, base_parts=parts)
        changed = self.begin(
            use, self.prints, self.before.data, config.learner, facts(config, data)
        )
        view.header(header(config, data, self.steps, [*self.resolved.notes, *changed, *notes]))
        for line in (*changed, *notes):
            view.keep(line)

    @property
    def before(self) -> RunState:
        """Where it goes on from."""
        return self.earlier.checkpoint.state if self.earlier and self.earlier.step else RunState()

    def train(self) -> None:
        config, folder, view = self.options, self.folder, self.view
        adapter = config.adapter and (starting_adapter.kept(folder.path) or config.adapter)
        started = replace(config, adapter=adapter, max_steps=self.steps)
        processes = self.cluster = cluster.start(started, self.base, self.machine, view.stage)
        view.stage("trying out what has started")
        checks = Checks(self.level, learners_generate=config.learner_generates)
        checks.record = lambda found: folder.add_check({"step": self.progress()[0], **found})
        checks.check_started(processes, view.note)
        self.base_hash = checks.base_hash
        self.use = replace(self.use, base_hash=checks.base_hash)
        folder.beside_adapters = adapter_use.beside(self.use, self.base, self.card)
        first = RunState(data=self.prints, base=checks.base_hash, versions=origin.versions())
        pieces = Pieces(lambda: base_model.load_tokenizer(self.base))
        trainer = self.trainer = Trainer(
            config, self.data, processes, folder, view, self.steps, checks, self.trackers, pieces,
            first,
        )  # fmt: skip
        self.has_results = True
        if self.earlier is not None:
            restore(trainer, self.earlier, self.before, config.model)
            self.earlier.go_on(config, view, facts(config, self.data))
            folder.saved()  # what came after the step is gone
        is_resumed = self.earlier is not None and self.earlier.checkpoint is not None
        if self.trackers is not None:
            self.trackers.start(trainer.state.step if is_resumed else None)
        # Python's collector is to look through less of what never is in a cycle: what is there by
        # now and, where no tensors can be, the records of rollouts, thousands a second.
        gc.freeze()
        if not processes.is_local:
            gc.set_threshold(50_000, 20, 20)
        trainer.train()

    def save(self, status: str, error: BaseException | None) -> Path | None:
        """The last whole step and adapter, as far as processes that may be dead give them."""
        trainer, adapter = self.trainer, None
        try:
            if trainer is not None and status != "finished":  # it loses at most the step in flight
                self._if_possible(trainer.save_boundary, "whole step")
            if trainer is not None and trainer.published is not None and error is None:
                save = trainer.save_last_adapter
                adapter = save() if status == "finished" else self._if_possible(save, "adapter")
            return adapter
        finally:
            if self.cluster is not None:
                with contextlib.suppress(*([Exception] if error else [])):  # it says more
                    self.cluster.close()

    def _if_possible(self, save: Callable[[], Any], what: str) -> Any:
        """None, and a note, where a process is dead, the disk full, or a second Ctrl-C comes."""
        try:
            return save()
        except (RunError, OSError, KeyboardInterrupt) as error:
            said = str(error) or "interrupted again"
            self.view.note(f"the last {what} is not saved: {said}")
            return None

    def progress(self) -> tuple[int, float, list[dict[str, Any]]]:
        state = self.trainer.state if self.trainer else self.before
        return state.step, state.seconds, state.evals or []

    def best(self, evals: list[dict[str, Any]]) -> dict[str, Any]:
        return best(evals)

    def commands(self, adapter: Path | None) -> dict[str, Any]:
        """What to do with the run's newest adapter, to be copied into a shell."""
        run, more = self.folder.path, {"base_hash": self.base_hash}
        if adapter is None:
            return {"command": None, **more}
        return {
            "command": origin.command("chat", "--adapter", run),
            "evaluate": origin.command("eval", "--adapter", run),
            "export": origin.command("export", "--adapter", run, "--output", f"{run.name}-export"),
            **more,
        }


def run(resolved: Resolved, view: Terminal | None = None) -> int:
    """-> the exit code of a run, see `Job.execute`."""
    job, machine = RlRun(resolved, view), Machine.detect()
    alone = resolved.config.cluster == "local"
    variables.apply(machine.cpus, bool(machine.gpus), alone=alone)
    job.machine = machine
    return job.execute()


def restore(trainer: Trainer, earlier: EarlierRun, before: RunState, model: str) -> None:
    """Has a trainer go on after `before`. UserError for another base, or another learner's."""
    if before.base and trainer.first.base and before.base != trainer.first.base:
        raise UserError(
            f"model {model}: its weights are not those that the run was trained on: give the base "
            "back, or start a new run"
        )
    if (checkpoint := earlier.checkpoint) is not None:
        try:
            draws_otherwise = not earlier.changed <= resume.FREE  # rollouts may depend on the rest
            trainer.restore(checkpoint, draws_otherwise)
        except ValueError as error:
            name = f"resume {earlier.folder.path}: {checkpoint.folder.name}"
            raise UserError(f"{name}: {error}") from None


def check_without_data(config: Config, view: Any) -> None:
    """Imports libraries, and checks what needs no data; the base is downloaded. UserError."""
    view.stage("importing libraries")
    cluster.import_first(config)
    trial.try_objective(objective_of(config), config.max_new_tokens)
    on_hub = is_hub_id(config.model)
    for adapter in filter(None, [starting_adapter.folder(config), *judges_of(config)]):
        from unslothrl.weights import adapter_check

        # before a base is downloaded whole or quantised
        adapter_check.check(adapter, base_model.find(config.model, weights=False))
    if config.ray_address is not None and config.cluster == "ray":
        view.stage(f"looking for the cluster at {config.ray_address}")
        joining.check(config.ray_address)
    view.stage(f"{'downloading or finding' if on_hub else 'reading'} base {config.model}")
    base_model.find(config.model)
    check_division(config)


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


def check_rewards(
    config: Config, data: Data | None = None, note: Callable[[str], None] = print
) -> str | None:
    """Loads functions of the user's own and tries the sandbox; with `data`, tries the functions
    too, of which there may be a `note`. -> the level of the sandbox; None without programs."""
    with contextlib.closing(scorer_of(config)) as scorer:
        scorer.check()
        if data is not None:
            tried, first = (
                trial.try_rewards(scorer, trial.shortest(data)),
                data.train.draw(0, 50)[0],
            )
            for line in [*tried, *trial.sentences(scorer.chosen, first)]:
                note(line)
        return scorer.level


def judges_of(config: Config) -> list[str]:
    chosen = rewards.choose(config.reward)
    return [each.function for each in chosen if each.runs == rewards.IN_LEARNER]

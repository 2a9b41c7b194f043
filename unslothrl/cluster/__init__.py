"""Processes: the same actors and learners under Ray, or one after the other in this process.

This file and joining.py alone import ray. Both clusters run the same classes on the same arguments;
the in-process one is for debugging, and for machines without Ray.
"""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from unslothrl import variables
from unslothrl.cluster import failures, joining
from unslothrl.config.options import Config
from unslothrl.engines.vllm import adapter_room
from unslothrl.errors import UserError
from unslothrl.planning.machine import Machine
from unslothrl.planning.place import place
from unslothrl.planning.placement import LEARNER, Placement, ProcessPlan, Resources

Stage = Callable[[str], None]
Progress = Callable[[int, int], None]
POLL_S = 0.25


class Worker(Protocol):
    """An actor or a learner, wherever it runs."""

    @property
    def name(self) -> str: ...

    def call(self, method: str, *arguments: Any) -> Any:
        """Begins a call; its result comes from the cluster's `gather`.

        An argument may itself be a call that has begun: its result then goes from worker to worker
        and never through this process.
        """


class Cluster(Protocol):
    @property
    def actors(self) -> Sequence[Worker]: ...

    @property
    def learners(self) -> Sequence[Worker]: ...

    def gather(self, calls: Sequence[Any], progress: Progress | None = None) -> list[Any]:
        """The results of calls, in order; raises what a call raised.

        `progress` gets (done, tokens) summed over the calls' workers while they run.
        """

    def close(self) -> None:
        """Ends every process that was started."""


def start(config: Config, base: Path, machine: Machine, stage: Stage) -> Cluster:
    """The cluster that `config` asks for, its workers loaded. Raises UserError if it cannot fit."""
    if config.cluster == "local":
        return LocalCluster(config, base, machine, stage)
    return RayCluster(config, base, machine, stage)


def import_first(config: Config) -> None:
    """Imports what must be first in this process, where it will hold the learner itself.

    Raises UserError where the learner's process, on this machine, could not import it.
    """
    here = config.cluster == "local" or config.ray_address is None
    if config.backend == "unsloth" and here and importlib.util.find_spec("unsloth") is None:
        raise UserError("backend unsloth is not installed on this machine: set --backend peft")
    if config.cluster == "local" and config.backend == "unsloth":
        from unslothrl.build import import_unsloth

        import_unsloth(config)


def base_size_mb(base: Path) -> float:
    return sum(path.stat().st_size for path in base.glob("*.safetensors")) / 2**20


class LocalCall:
    """A call that runs when its result is first asked for."""

    def __init__(self, worker: "LocalWorker", method: str, arguments: tuple):
        self.worker, self.method, self.arguments = worker, method, arguments
        self.done = False

    def result(self) -> Any:
        if not self.done:
            arguments = [a.result() if isinstance(a, LocalCall) else a for a in self.arguments]
            self.value = getattr(self.worker.target, self.method)(*arguments)
            self.done = True
        return self.value


class LocalWorker:
    def __init__(self, name: str, target: Any):
        self.name, self.target = name, target

    def call(self, method: str, *arguments: Any) -> LocalCall:
        return LocalCall(self, method, arguments)


class LocalCluster:
    """Everything in this process, one call after the other."""

    def __init__(self, config: Config, base: Path, machine: Machine, stage: Stage):
        from unslothrl.build import build_actor, build_learner

        if config.engine == "vllm" and config.number_of_actors > 1:
            raise UserError(
                f"number_of_actors {config.number_of_actors}: one process holds one vLLM: set "
                "--number_of_actors 1 with --cluster local, or --cluster ray"
            )
        resources = Resources.of_machine(config, machine)
        placement = place(config, resources, base_mb=base_size_mb(base))
        self.learners: list[LocalWorker] = []
        self.actors: list[LocalWorker] = []
        try:
            for plan in placement.learners:
                stage(f"loading learner {plan.index}")
                learner = build_learner(config, base, plan)
                self.learners.append(LocalWorker(plan.name, learner))
            for plan in placement.actors:
                stage(f"loading actor {plan.index}")
                actor = build_actor(config, base, plan)
                self.actors.append(LocalWorker(plan.name, actor))
        except BaseException:
            self.close()
            raise

    def gather(self, calls: Sequence[Any], progress: Progress | None = None) -> list[Any]:
        results, before = [], (0, 0)
        for call in calls:
            meter = call.worker.target.progress
            if progress is not None:
                meter.listener = lambda done, tokens, base=before: progress(
                    base[0] + done, base[1] + tokens
                )
            try:
                results.append(call.result())
            finally:
                meter.listener = None
            before = (before[0] + meter.state[0], before[1] + meter.state[1])
        return results

    def close(self) -> None:
        for worker in (*self.actors, *self.learners):
            worker.call("close").result()


@dataclass(frozen=True)
class RayCall:
    """A call that runs in a worker's process; `ref` is where its result will be."""

    worker: "RayWorker"
    ref: Any


@dataclass(frozen=True)
class RayWorker:
    name: str
    handle: Any

    def call(self, method: str, *arguments: Any) -> RayCall:
        refs = [a.ref if isinstance(a, RayCall) else a for a in arguments]
        return RayCall(self, self.handle.call.remote(method, *refs))


class Host:
    """What Ray runs: a worker, and beside it a thread that says how far it is."""

    def __init__(self, build: Callable, *arguments: Any):
        self.failed: Exception | None = None
        try:
            self.worker = build(*arguments)
        except Exception as error:  # of one raised here Ray keeps no more than its text
            self.failed = error

    def ready(self) -> None:
        """Raises what ended its construction."""
        if self.failed is not None:
            raise self.failed

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.worker, method)(*arguments)

    def pid(self) -> int:
        return os.getpid()

    def progress(self) -> tuple[int, int]:
        return self.worker.progress.state


class RayCluster:
    """A process for each worker; adapters travel through the object store."""

    def __init__(self, config: Config, base: Path, machine: Machine, stage: Stage):
        import ray

        self.ray: Any = ray
        self.machine = machine
        self.scratch = Path(
            tempfile.mkdtemp(prefix=f"unslothrl-{os.getpid()}-", dir=adapter_room())
        )
        self.learners: Sequence[RayWorker] = ()
        self.actors: Sequence[RayWorker] = ()
        self.names: dict[str, str] = {}  # Ray's id of an actor -> its name
        self.logs: Path | None = None
        self.oom_kills = failures.oom_killed()
        stage("starting Ray" if config.ray_address is None else f"joining {config.ray_address}")
        try:
            self._init(config, machine)
            self._start_workers(config, base, stage)
        except BaseException:
            self.close()
            raise

    def _init(self, config: Config, machine: Machine) -> None:
        context = self._connect(config, machine)
        # Ray prints on its own that some worker died; we say which, and why.
        self.ray._private.worker.print_to_stdstream = lambda *_, **__: None
        self.logs = Path(context.address_info["session_dir"]) / "logs"

    def _connect(self, config: Config, machine: Machine) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if config.ray_address is not None:
            try:
                return self.ray.init(
                    address=config.ray_address, log_to_driver=False, logging_level="ERROR"
                )
            except ConnectionError as error:  # it has ended since `joining.check`
                raise UserError(
                    f"ray_address {config.ray_address}: no cluster answers there "
                    f"({str(error).splitlines()[0]}): start one with `ray start --head`"
                ) from None
        joining.token_of_our_own(os.environ)
        size, folder = object_store(machine)
        if folder is not None:
            os.environ["RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE"] = "1"
        return self.ray.init(
            address="local",
            num_cpus=machine.cpus,
            num_gpus=len(machine.gpus),
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=size,
            _plasma_directory=folder,
        )

    def _start_workers(self, config: Config, base: Path, stage: Stage) -> None:
        from unslothrl.build import build_actor, build_learner

        resources = Resources.of_machine(config, self.machine)
        if config.ray_address is not None:
            has = self.ray.cluster_resources()
            resources = Resources.of_cluster(int(has.get("GPU", 0)), has.get("memory", 0) / 2**20)
        placement = place(config, resources, base_mb=base_size_mb(base))
        strategies = self._reserve(placement, config)
        learners = counted(config.number_of_learners, "learner")
        stage(f"loading {learners} and {counted(config.number_of_actors, 'actor')}")
        started: dict[str, RayWorker] = {}
        for plans in placement.rounds():
            for plan in plans:
                build = build_learner if plan.kind == LEARNER else build_actor
                handle = self._host(strategies[plan.name], plan).remote(build, config, base, plan)
                started[plan.name] = RayWorker(plan.name, handle)
                self.names[handle._actor_id.hex()] = plan.name
            self._get([started[plan.name].handle.ready.remote() for plan in plans])
        self.learners = [started[plan.name] for plan in placement.learners]
        self.actors = [started[plan.name] for plan in placement.actors]

    def _get(self, refs: Sequence[Any]) -> list[Any]:
        """The values of `refs`. Raises what a worker raised, or RunError where one has died."""
        try:
            return self.ray.get(refs)
        except self.ray.exceptions.RayError as error:
            cause = failures.original(error)
            if isinstance(cause, self.ray.exceptions.RayError):
                raise failures.dead_worker(cause, self.names, self.logs, self.oom_kills) from None
            raise cause from cause.__cause__

    def _reserve(self, placement: Placement, config: Config) -> dict[str, Any]:
        """-> a scheduling strategy for each process, by its name."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundles = placement.bundles()
        if not bundles:
            return {plan.name: "DEFAULT" for plan in placement.processes}
        group = placement_group(bundles, strategy="PACK")
        if not group.wait(timeout_seconds=60):
            raise UserError(
                f"number_of_actors {config.number_of_actors}: the cluster does not give "
                f"{bundles} (it has {self.ray.cluster_resources()}): is another job holding it?"
            )
        return {
            plan.name: PlacementGroupSchedulingStrategy(group, index)
            for index, plan in enumerate(placement.processes)
        }

    def _host(self, strategy: Any, plan: ProcessPlan):
        environment = worker_environment(self.machine, self.scratch, plan)
        return self.ray.remote(
            num_cpus=0,
            num_gpus=plan.reserved,
            concurrency_groups={"watch": 1},
            runtime_env={"env_vars": environment},
            scheduling_strategy=strategy,
        )(self._watched_host())

    def _watched_host(self) -> type:
        progress = self.ray.method(concurrency_group="watch")(Host.progress)
        return type("Host", (Host,), {"progress": progress})

    def gather(self, calls: Sequence[Any], progress: Progress | None = None) -> list[Any]:
        refs = [call.ref for call in calls]
        waiting = refs
        while waiting:
            _, waiting = self.ray.wait(waiting, num_returns=len(waiting), timeout=POLL_S)
            if progress is not None and waiting:
                asked = [call.worker.handle.progress.remote() for call in calls]
                states = self._get(asked)
                progress(sum(done for done, _ in states), sum(tokens for _, tokens in states))
        return self._get(refs)

    def close(self) -> None:
        for worker in (*self.actors, *self.learners):
            self.ray.kill(worker.handle)
        self.ray.shutdown()
        shutil.rmtree(self.scratch, ignore_errors=True)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def object_store(machine: Machine) -> tuple[int, str | None]:
    """-> (bytes, folder or None for /dev/shm) for Ray's object store on a small host.

    Adapters and rollouts pass through it, so a tenth of memory is plenty; where /dev/shm is too
    small for that (64 MB in a container), the store lies on disk.
    """
    size = int(min(max(0.1 * machine.ram_mb, 128), 4096)) * 2**20
    if machine.shm_mb * 2**20 > 1.2 * size:
        return size, None
    return size, "/tmp"


def worker_environment(machine: Machine, scratch: Path, plan: ProcessPlan) -> dict[str, str]:
    """What a worker process gets: this process's environment, where to import us from, and the card
    that it was planned for, where that is one of this machine."""
    paths = [str(variables.IMPORT_FOLDER), os.environ.get("PYTHONPATH", "")]
    on_card: dict[str, str] = {}
    if plan.card is not None and plan.gpu is not None:
        on_card = variables.of_card(plan.card)
    return {
        **variables.of_workers(machine.cpus, bool(machine.gpus)),
        **on_card,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        variables.SCRATCH: str(scratch),
    }

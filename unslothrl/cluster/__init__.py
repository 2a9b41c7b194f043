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
from unslothrl.planning import placement
from unslothrl.planning.engine_memory import cards
from unslothrl.planning.machine import Machine

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


def plan(
    config: Config, base: Path, machine: Machine, joined: placement.Cluster | None = None
) -> placement.Placement:
    """Where the processes go, on this machine or on the cluster that was joined.

    Raises UserError where they do not fit.
    """
    has = joined or placement.Cluster(len(cards(config, machine)), machine.ram_mb)
    return placement.place(
        has,
        learners=config.number_of_learners,
        actors=config.number_of_actors,
        learner_share=config.learner_gpu_usage,
        actor_share=0.0 if config.kv_cache_mb else config.actor_gpu_usage,  # 0: decided by size
        base_mb=base_size_mb(base),
    )


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
        where = plan(config, base, machine)
        seat = where.seat(cards(config, machine))
        self.learners: list[LocalWorker] = []
        self.actors: list[LocalWorker] = []
        try:
            for i in range(config.number_of_learners):
                stage(f"loading learner {i}")
                learner = build_learner(config, base, i, seat)
                self.learners.append(LocalWorker(f"learner-{i}", learner))
            for i in range(config.number_of_actors):
                stage(f"loading actor {i}")
                actor = build_actor(config, base, i, seat)
                self.actors.append(LocalWorker(f"actor-{i}", actor))
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

        joined = None
        if config.ray_address is not None:
            has = self.ray.cluster_resources()
            joined = placement.Cluster(int(has.get("GPU", 0)), has.get("memory", 0) / 2**20)
        where = plan(config, base, self.machine, joined)
        strategies = self._reserve(where, config)
        learners = counted(config.number_of_learners, "learner")
        stage(f"loading {learners} and {counted(config.number_of_actors, 'actor')}")
        started: list[RayWorker] = []
        seat = where.seat(() if joined else self.machine.gpus)
        for kind, build, count, gpus in (
            ("learner", build_learner, config.number_of_learners, where.learner_gpus),
            ("actor", build_actor, config.number_of_actors, where.actor_gpus),
        ):
            for index in range(count):
                handle = self._host(next(strategies), gpus).remote(build, config, base, index, seat)
                started.append(RayWorker(f"{kind}-{index}", handle))
                self.names[handle._actor_id.hex()] = started[-1].name
                if 0 < gpus < 1:  # engines on one card measure its free memory: one by one
                    self._get([handle.ready.remote()])
        self.learners = started[: config.number_of_learners]
        self.actors = started[config.number_of_learners :]
        self._get([worker.handle.ready.remote() for worker in started])

    def _get(self, refs: Sequence[Any]) -> list[Any]:
        """The values of `refs`. Raises what a worker raised, or RunError where one has died."""
        try:
            return self.ray.get(refs)
        except self.ray.exceptions.RayError as error:
            cause = failures.original(error)
            if isinstance(cause, self.ray.exceptions.RayError):
                raise failures.dead_worker(cause, self.names, self.logs, self.oom_kills) from None
            raise cause from cause.__cause__

    def _reserve(self, where: placement.Placement, config: Config):
        """Yields a scheduling strategy for each worker, learners first."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundles = where.bundles(config.number_of_learners, config.number_of_actors)
        workers = config.number_of_learners + config.number_of_actors
        if not bundles:
            return iter(["DEFAULT"] * workers)
        group = placement_group(bundles, strategy="PACK")
        if not group.wait(timeout_seconds=60):
            raise UserError(
                f"number_of_actors {config.number_of_actors}: the cluster does not give "
                f"{bundles} (it has {self.ray.cluster_resources()}): is another job holding it?"
            )
        return iter(
            [PlacementGroupSchedulingStrategy(group, index) for index in range(len(bundles))]
        )

    def _host(self, strategy: Any, gpus: float):
        return self.ray.remote(
            num_cpus=0,
            num_gpus=gpus,
            concurrency_groups={"watch": 1},
            runtime_env={"env_vars": worker_environment(self.machine, self.scratch)},
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


def worker_environment(machine: Machine, scratch: Path) -> dict[str, str]:
    """What a worker process gets: this process's environment, and where to import us from."""
    paths = [str(variables.IMPORT_FOLDER), os.environ.get("PYTHONPATH", "")]
    return {
        **variables.of_workers(machine.cpus, bool(machine.gpus)),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        variables.SCRATCH: str(scratch),
    }

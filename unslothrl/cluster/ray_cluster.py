"""A process for each actor and learner, under Ray; adapters travel through its object store.

This file and joining.py alone import ray.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unslothrl import variables
from unslothrl.cluster import failures, joining
from unslothrl.cluster.base import Progress, Stage, counted, join_learners
from unslothrl.cluster.handles import ActorHandle, Call, LearnerHandle
from unslothrl.config.options import Config
from unslothrl.engines.vllm import adapter_room
from unslothrl.errors import RunError, UserError
from unslothrl.planning.machine import Machine
from unslothrl.planning.place import place
from unslothrl.planning.placement import LEARNER, Placement, ProcessPlan, Resources
from unslothrl.weights import base_model

POLL_S = 0.25
DEATH_S = 3.0  # in which Ray notices that a process has died


class RayCall(Call[Any]):
    """A call that runs in another process; `ref` is where its result will be."""

    def __init__(self, transport: "RayTransport", ref: Any):
        self.transport, self.ref = transport, ref


class RayTransport:
    """The way to an actor or a learner in a process of its own; `host` is Ray's handle of it."""

    def __init__(self, host: Any):
        self.host = host

    def call(self, method: str, *arguments: Any) -> RayCall:
        refs = [a.ref if isinstance(a, RayCall) else a for a in arguments]
        return RayCall(self, self.host.call.remote(method, *refs))

    def fetch(self, argument: Any) -> RayCall:
        """In a thread of its own there. An argument that is no call travels with the call itself,
        and is fetched for it again."""
        refs = [argument.ref] if isinstance(argument, RayCall) else []
        return RayCall(self, self.host.fetch.remote(refs))


class Host:
    """What Ray runs: an actor or a learner, and beside it a thread that says how far it is."""

    def __init__(self, build: Callable, *arguments: Any):
        self.failed: Exception | None = None
        try:
            self.target = build(*arguments)
        except Exception as error:  # of one raised here Ray keeps no more than its text
            self.failed = error

    def ready(self) -> None:
        """Raises what ended its construction."""
        if self.failed is not None:
            raise self.failed

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.target, method)(*arguments)

    def pid(self) -> int:
        return os.getpid()

    def fetch(self, refs: list[Any]) -> float:
        """Reads objects of Ray's, each once for all processes of a node. They come in a list
        because Ray would fetch arguments itself. -> seconds"""
        import ray

        if refs:
            ray.wait(refs, num_returns=len(refs), fetch_local=False)
        started = time.perf_counter()
        ray.get(refs)
        return time.perf_counter() - started

    def progress(self) -> tuple[int, int]:
        return self.target.progress.state


class RayCluster:
    """See `base.Cluster`. Starts Ray, or joins a cluster of it, and a process for each."""

    def __init__(self, config: Config, base: Path, machine: Machine, stage: Stage):
        import ray

        self.ray: Any = ray
        self.machine = machine
        self.scratch = Path(
            tempfile.mkdtemp(prefix=f"unslothrl-{os.getpid()}-", dir=adapter_room())
        )
        self.learners: Sequence[LearnerHandle] = ()
        self.actors: Sequence[ActorHandle] = ()
        self.hosts: dict[str, Any] = {}  # Ray's handles, by name
        self.names: dict[str, str] = {}  # Ray's id of an actor -> its name
        self.logs: Path | None = None
        self.oom_kills = failures.oom_killed()
        stage("starting Ray" if config.ray_address is None else f"joining {config.ray_address}")
        try:
            self._init(config, machine)
            self._start(config, base, stage)
            join_learners(self)
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
        joining.ensure_token(os.environ)
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

    def _start(self, config: Config, base: Path, stage: Stage) -> None:
        from unslothrl.build import build_actor, build_learner

        resources = Resources.of_machine(config, self.machine)
        if config.ray_address is not None:
            has = self.ray.cluster_resources()
            resources = Resources.of_cluster(int(has.get("GPU", 0)), has.get("memory", 0) / 2**20)
        placement = place(config, resources, base_mb=base_model.size_mb(base))
        strategies = self._reserve(placement, config)
        learners = counted(config.number_of_learners, "learner")
        stage(f"loading {learners} and {counted(config.number_of_actors, 'actor')}")
        for plans in placement.rounds():
            for plan in plans:
                build = build_learner if plan.kind == LEARNER else build_actor
                host = self._host(strategies[plan.name], plan).remote(build, config, base, plan)
                self.hosts[plan.name] = host
                self.names[host._actor_id.hex()] = plan.name
            self._get([self.hosts[plan.name].ready.remote() for plan in plans])
        ways = {name: RayTransport(host) for name, host in self.hosts.items()}
        self.learners = [LearnerHandle(plan.name, ways[plan.name]) for plan in placement.learners]
        self.actors = [ActorHandle(plan.name, ways[plan.name]) for plan in placement.actors]

    def _get(self, refs: Sequence[Any]) -> list[Any]:
        """The values of `refs`. Raises what a worker raised, or RunError where one has died."""
        try:
            return self.ray.get(refs)
        except self.ray.exceptions.RayError as error:
            cause = failures.original(error)
            if isinstance(cause, self.ray.exceptions.RayError):
                raise failures.process_died(cause, self.names, self.logs, self.oom_kills) from None
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
        environment = process_environment(self.machine, self.scratch, plan)
        return self.ray.remote(
            num_cpus=0,
            num_gpus=plan.reserved,
            concurrency_groups={"watch": 1, "fetch": 1},
            runtime_env={"env_vars": environment},
            scheduling_strategy=strategy,
        )(self._watched_host())

    def _watched_host(self) -> type:
        """`Host` with a thread for each method that answers while a call runs."""
        progress = self.ray.method(concurrency_group="watch")(Host.progress)
        fetch = self.ray.method(concurrency_group="fetch")(Host.fetch)
        return type("Host", (Host,), {"progress": progress, "fetch": fetch})

    def gather(self, calls: Sequence[Any], progress: Progress | None = None) -> list[Any]:
        values: dict[Any, Any] = {}
        waiting = list({call.ref: None for call in calls})
        while waiting:
            done, waiting = self.ray.wait(waiting, num_returns=len(waiting), timeout=POLL_S)
            try:  # at once: where one has failed, the others may wait for it
                values |= zip(done, self._get(done), strict=True)
            except RunError:
                self._raise_dead(waiting)
                raise
            if progress is not None and waiting:
                states = self._get([call.transport.host.progress.remote() for call in calls])
                progress(sum(done for done, _ in states), sum(tokens for _, tokens in states))
        return [values[call.ref] for call in calls]

    def wait(self, calls: Sequence[Any]) -> None:
        refs = list({call.ref: None for call in calls})
        self.ray.wait(refs, num_returns=len(refs), fetch_local=False)

    def _raise_dead(self, refs: Sequence[Any]) -> None:
        """Raises RunError where one of those that still run is dead: what it ended in others, who
        wait for it, they notice before Ray does."""
        if not refs:
            return
        for ref in self.ray.wait(refs, num_returns=len(refs), timeout=DEATH_S)[0]:
            try:
                self.ray.get(ref)
            except self.ray.exceptions.RayActorError:
                self._get([ref])
            except Exception:  # another who has waited in vain
                continue

    def close(self) -> None:
        for host in self.hosts.values():
            self.ray.kill(host)
        self.ray.shutdown()
        shutil.rmtree(self.scratch, ignore_errors=True)


def object_store(machine: Machine) -> tuple[int, str | None]:
    """-> (bytes, folder or None for /dev/shm) for Ray's object store on a small host.

    Adapters and rollouts pass through it, so a tenth of memory is plenty; where /dev/shm is too
    small for that (64 MB in a container), the store lies on disk.
    """
    size = int(min(max(0.1 * machine.ram_mb, 128), 4096)) * 2**20
    if machine.shm_mb * 2**20 > 1.2 * size:
        return size, None
    return size, "/tmp"


def process_environment(machine: Machine, scratch: Path, plan: ProcessPlan) -> dict[str, str]:
    """What a process gets: this process's environment, where to import us from, and the card that
    it was planned for, where that is one of this machine."""
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

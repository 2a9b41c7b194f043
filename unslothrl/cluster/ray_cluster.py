"""A process for each actor and learner, under Ray; adapters travel through its object store.

Of this package only `cluster` imports ray.
"""

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from unslothrl.cluster import causes, joining, ray_calls
from unslothrl.cluster.handles import (
    MOST_STARTS,
    ActorHandle,
    Builders,
    Call,
    Changes,
    Clock,
    Cluster,
    LearnerHandle,
    Outcome,
    Progress,
    Stage,
)
from unslothrl.cluster.ray_calls import PING_S, STATE_S, RayHost, RayTransport, Watch, result_of
from unslothrl.config.options import Config
from unslothrl.errors import ProcessLost, ResultLost, RunError
from unslothrl.planning.place import place
from unslothrl.planning.placement import ACTOR, ProcessPlan, Resources
from unslothrl.system import variables
from unslothrl.system.machine import Machine
from unslothrl.text import counted
from unslothrl.weights import base_model
from unslothrl.weights.adapter import ROOM, NodeFiles, adapter_room

if TYPE_CHECKING:  # of a cluster that was joined
    from unslothrl.cluster.node_watch import NodeWatch
    from unslothrl.cluster.nodes import JoinedNodes

POLL_S = 0.25
MEANWHILE_S = 0.05  # between two calls of `meanwhile`
DEATH_S = 3.0  # in which Ray notices that a process has died
START_S, START_LEAST_S = 1800.0, 120.0  # for processes to start, the first and those after them
START_FACTOR = 10.0  # times as long as the first took


class RayCluster(Cluster):
    """See `handles.Cluster`. Starts Ray, or joins a cluster of it, and a process for each."""

    is_local = False

    def __init__(
        self, config: Config, base: Path, machine: Machine, stage: Stage, builders: Builders
    ):
        import ray

        super().__init__()
        self.ray: Any = ray
        self.config, self.base, self.machine, self.builders = config, base, machine, builders
        self.stage = stage
        self.scratch = Path(tempfile.mkdtemp(prefix=f"{ROOM}{os.getpid()}-", dir=adapter_room()))
        self.scratch_files = NodeFiles(self.scratch)  # locks it, and removes what nobody locks
        self.hosts: dict[str, Any] = {}  # Ray's handles, by name
        self.plans: dict[str, ProcessPlan] = {}
        self.nodes: JoinedNodes | None = None  # of a cluster that was joined
        self.node_watch: NodeWatch | None = None
        self.start_s: dict[str, float] = {}  # the longest start so far, of learners and of actors
        self.head: joining.RayHead | None = None
        self.names: dict[str, str] = {}  # Ray's id of an actor -> its name
        self.oom_kills = causes.oom_killed()
        self.logs, self.here = Path(), ""  # Ray's logs here, and this node's address
        self.watches: dict[Any, Watch] = {}  # by host
        stage("starting Ray" if config.ray_address is None else f"joining {config.ray_address}")
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            self._connect()
            self._start()
            self._join_at_start()
            on_error.pop_all()

    def _connect(self) -> None:
        ray, address = self.ray, self.config.ray_address
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with joining.undisturbed(ray):
            if address is None:
                context = joining.start(ray, self.machine)
            else:
                context = ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        # Ray prints on its own that some worker died; we say which, and why.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
        self.logs = Path(context.address_info["session_dir"]) / "logs"
        self.here = context.address_info["node_ip_address"]
        self.head = joining.RayHead(context.address_info["gcs_address"])

    def _start(self) -> None:
        config, base_mb = self.config, base_model.size_mb(self.base)
        if config.ray_address is None:
            resources = Resources.of_machine(config, self.machine)
        else:
            from unslothrl.cluster.nodes import JoinedNodes

            self.nodes = JoinedNodes(self.ray, config, self.base, self.machine)
            config, resources = self.nodes.config, self.nodes.resources
        placement = place(config, resources, base_mb=base_mb)
        self.plans = {plan.name: plan for plan in placement.processes}
        if self.nodes is not None:
            self.nodes.prepare(placement)
            from unslothrl.cluster.node_watch import NodeWatch

            self.node_watch = NodeWatch(self.nodes, self.plans, base_mb)
        counts = ((config.number_of_learners, "learner"), (config.number_of_actors, "actor"))
        self.stage(f"loading {' and '.join(counted(*each) for each in counts if each[0])}")
        for plans in placement.rounds():
            for plan in plans:
                self._launch(plan.name)
            self._wait_ready([plan.name for plan in plans])
        self.learners = [
            LearnerHandle(each.name, self._way(each.name)) for each in placement.learners
        ]
        self.actors = [ActorHandle(each.name, self._way(each.name)) for each in placement.actors]

    def _join(self) -> None:
        """Makes a group of several learners, which will exchange their gradients. They meet at the
        loopback address where Ray is at that, else at the first one's in its network."""
        is_alone = self.here.startswith("127.") or self.here == "::1"
        if len(learners := self.learners) > 1:
            (address,) = self.gather([learners[0].listen(self.here if is_alone else None)])
            self.gather([each.join(at, len(learners), address) for at, each in enumerate(learners)])

    def _join_at_start(self) -> None:
        """`_join`; where one of the learners dies meanwhile, all start again."""
        for _ in range(MOST_STARTS - 1):
            try:
                return self._join()
            except ProcessLost as error:
                self.stage(f"{error}: all learners start again")
                self._launch_learners()
        self._join()

    def _way(self, name: str) -> RayTransport:
        """To a process that has been launched."""
        return RayTransport(self.hosts[name])

    def _has_head(self) -> bool:
        """Whether calls of the head may be made: they would block."""
        return self.head is not None and self.head.answers()

    def _launch(self, name: str) -> None:
        """Has a process begin to build what is planned for it."""
        plan = self.plans[name]
        if self.nodes is None:
            environment = ray_calls.process_environment(self.machine, self.scratch, plan)
            start = ray_calls.Start(environment, self.config, self.base)
        else:
            start = self.nodes.start_of(plan)
        remote = self.ray.remote(
            num_cpus=0,
            concurrency_groups=RayHost.threads,
            runtime_env={
                "env_vars": {**start.environment, variables.PROCESS: name},
                **joining.own_python(),
            },
            scheduling_strategy=start.strategy,
        )(RayHost)
        self.hosts[name] = remote.remote(self.builders[plan.kind], start.config, start.base, plan)
        self.names[self.hosts[name]._actor_id.hex()] = name

    def _launch_again(self, names: Sequence[str]) -> None:
        for name in names:
            self._end(name)
        for name in names:
            self._place(name)
        for name in names:
            self._launch(name)

    def _wait_ready(self, names: Collection[str]) -> None:
        """Returns when these are built. One that dies or hangs meanwhile is started again."""
        waiting: dict[str, Call[Any]] = {name: self._way(name).ready() for name in names}
        began, starts, clock = dict.fromkeys(names, 0.0), Counter(names), Clock()
        allowed_s = {name: self.start_allowed_s(self.plans[name].kind) for name in names}
        while waiting:
            ended = {call: error for call, _, error in self.poll(waiting.values(), POLL_S)}
            for name, call in list(waiting.items()):
                error, seconds = ended.get(call), clock.now() - began[name]
                if call in ended and error is None:
                    del waiting[name]
                    kind = self.plans[name].kind
                    self.start_s[kind] = max(seconds, self.start_s.get(kind, 0.0))
                elif call not in ended and seconds > allowed_s[name]:
                    text = f"{name} has not started for {seconds:.0f} s: it hangs"
                    error = ProcessLost(name, text)
                if error is None:
                    continue
                may_start = isinstance(error, ProcessLost) and not causes.is_for_memory(error)
                if starts[name] == MOST_STARTS or not may_start:
                    raise error from error.__cause__
                self.stage(f"{error}: started again")
                self._launch_again([name])
                waiting[name] = self._way(name).ready()
                began[name] = clock.now()
                starts[name] += 1

    def start_allowed_s(self, kind: str = ACTOR) -> float:
        if kind not in self.start_s:
            return START_S
        return max(START_LEAST_S, START_FACTOR * self.start_s[kind])

    def gather(
        self,
        calls: Sequence[Any],
        progress: Progress | None = None,
        deadline_s: float | None = None,
    ) -> list[Any]:
        values: dict[Any, Any] = {}
        waiting = dict.fromkeys(calls)
        watches, clock = self._watches_of(calls), Clock()
        while waiting:
            for call, got, error in self.poll(waiting, MEANWHILE_S if self.meanwhile else POLL_S):
                del waiting[call]
                if error is not None:  # at once: the others may wait for it
                    self._raise(error, waiting)
                values[call] = got
            if waiting:
                self._meanwhile(watches)
                if deadline_s is not None and clock.now() > deadline_s:
                    self._hangs(next(iter(waiting)).transport.host, "did not finish in time")
                if progress is not None:
                    progress(*map(sum, zip(*(watch.state for watch in watches), strict=True)))
        return [values[call] for call in calls]

    def wait(self, calls: Sequence[Any]) -> None:
        refs = list({call.ref: None for call in calls})
        watches = self._watches_of(calls)
        timeout_s = MEANWHILE_S if self.meanwhile else POLL_S
        while self.ray.wait(refs, num_returns=len(refs), timeout=timeout_s, fetch_local=False)[1]:
            if self.head is not None:
                self.head.check()
            self._meanwhile(watches)

    def _watches_of(self, calls: Sequence[Any]) -> list[Watch]:
        return [Watch(host) for host in dict.fromkeys(call.transport.host for call in calls)]

    def _meanwhile(self, watches: Sequence[Watch]) -> None:
        """While calls run. Raises ProcessLost where a process does not answer."""
        if self.meanwhile is not None:
            self.meanwhile()
        for watch in watches:
            if watch.ask().silence_s() > PING_S:
                self._hangs(watch.host, f"does not answer (for {PING_S:g} s)")

    def _hangs(self, host: Any, reason: str) -> NoReturn:
        name = self.names.get(host._actor_id.hex(), "a process of the run")
        raise ProcessLost(name, f"{name} {reason}: it hangs, or its machine is stopped")

    def later(self, call: Any) -> Callable[[], Any]:
        def result() -> Any:
            value, error = result_of(call.ref, STATE_S)
            if error is not None:
                raise self._error_of(error)
            return value

        return result

    def poll(self, calls: Collection[Any], timeout_s: float) -> list[Outcome]:
        if self.head is not None:
            self.head.check()
        by_ref = {call.ref: call for call in calls}
        if not by_ref:
            return []
        done, _ = self.ray.wait(list(by_ref), num_returns=len(by_ref), timeout=timeout_s)
        return [self._outcome(by_ref[ref]) for ref in done]

    def _outcome(self, call: Any) -> Outcome:
        """What a call has come to, in any thread."""
        value, error = result_of(call.ref)
        return call, value, error and self._error_of(error)

    def _error_of(self, error: Exception) -> Exception:
        """What a process raised, `ProcessLost` where it has died, or `ResultLost`."""
        exceptions = self.ray.exceptions
        lost = (
            exceptions.ObjectLostError,
            exceptions.ObjectFetchTimedOutError,
            exceptions.GetTimeoutError,
        )
        cause = causes.original(error)
        if isinstance(cause, lost):
            return ResultLost(f"a result was lost on its way ({type(cause).__name__})")
        if isinstance(cause, exceptions.RayError):
            return causes.process_died(cause, self.names, self.logs, self.oom_kills, self.here)
        return cause

    def silence_s(self, handle: ActorHandle) -> float:
        return self._watch(handle.name).silence_s()

    def answer_s(self) -> float:
        """The lower median: one process that was cut off for a while says nothing."""
        now, watches = time.monotonic(), self.watches.values()
        recent = [
            watch.answer_s(now) for watch in watches if now - watch.longest[1] < ray_calls.FORGET_S
        ]
        return statistics.median_low(recent) if recent else 0.0

    def check_learners(self) -> None:
        for learner in self.learners:
            if (error := self._watch(learner.name).death) is not None:
                raise self._error_of(error)

    def _watch(self, name: str) -> Watch:
        """Of a process, which is asked again."""
        host = self.hosts[name]
        return self.watches.setdefault(host, Watch(host)).ask()

    def _raise(self, error: Exception, waiting: Collection[Any]) -> NoReturn:
        """Raises `error`, or ProcessLost where one of those that still run is dead: what it ended
        in others, who wait for it, they notice before Ray does."""
        if waiting and isinstance(error, RunError) and type(error) is not ProcessLost:
            end = time.monotonic() + DEATH_S
            while time.monotonic() < end:
                for _, _, other in self.poll(waiting, POLL_S):
                    if isinstance(other, ProcessLost):
                        raise other from other.__cause__
        raise error from error.__cause__

    def add_actor(self, name: str, elsewhere: bool = False) -> tuple[ActorHandle, Any]:
        if not self._has_head():
            raise RunError("Ray's head does not answer")
        self._end(name)
        if self.node_watch is not None:
            self.node_watch.place(name, elsewhere)
        self._launch(name)
        return self._enter_actor(name), self._way(name).ready()

    def _enter_actor(self, name: str) -> ActorHandle:
        handle = ActorHandle(name, self._way(name))
        self.actors = [*(actor for actor in self.actors if actor.name != name), handle]
        return handle

    def start_again(self, name: str) -> None:
        if any(name == learner.name for learner in self.learners):
            return self.restart_learners()
        self.add_actor(name)
        self._wait_ready([name])  # which may have started yet another
        self._enter_actor(name)

    def remove_actor(self, name: str) -> None:
        self._end(name)
        if self.node_watch is not None:
            self.node_watch.remove(name)

    def restart_learners(self) -> None:
        self._launch_learners()
        self._join()

    def _launch_learners(self) -> None:
        """Ends the learners, and returns when as many others are built."""
        names = [learner.name for learner in self.learners]
        self._launch_again(names)
        self._wait_ready(names)
        self.learners = [LearnerHandle(name, self._way(name)) for name in names]

    def _place(self, name: str) -> None:
        """Decides where a process starts, and waits for a node where its own has gone."""
        while self.node_watch is not None:
            try:
                return self.node_watch.place(name)
            except RunError:
                if not self.node_watch.looks:
                    raise
            self.node_watch.look()
            time.sleep(POLL_S)

    def changes(self) -> Changes:
        if self.node_watch is None or not self._has_head():
            return Changes()
        return self.node_watch.changes()

    def _end(self, name: str) -> None:
        self.actors = [actor for actor in self.actors if actor.name != name]
        host = self.hosts.pop(name, None)
        if host is not None:
            self.watches.pop(host, None)
            self.ray.kill(host)  # of one that is stopped Ray makes an end after 5 s

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # each in turn, whatever one before it raises
            stack.callback(shutil.rmtree, self.scratch, ignore_errors=True)
            stack.callback(self.scratch_files.close)
            stack.callback(self.ray.shutdown)
            for part in (self.node_watch, self.nodes) if self._has_head() else ():
                if part is not None:
                    stack.callback(part.close)
            for name in list(self.hosts):
                stack.callback(self._end, name)

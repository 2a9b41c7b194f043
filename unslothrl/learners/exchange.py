"""The sum of the learners' gradients, once an update: each learner gets the same, bit for bit.

A learner's part travels as one flat float32 buffer: its gradients, for each parameter whether it
has one (1 or 0), and whether its loss was not finite. So nobody steps where anybody's loss is not a
number, and a parameter without a gradient anywhere stays without one.

Over gloo on a CPU and where learners share a card, over NCCL where each has a card of its own. The
process groups are built directly, without torch's default group, which belongs to vLLM in a learner
that generates with it.

A learner that has died is noticed at once, by its connections; one that hangs only by the deadline
of the update. Who has waited in vain leaves the group, so that nobody waits for it in turn.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from unslothrl.errors import PeerLost

JOIN_S = 300.0  # until all learners are there: each is ready, and only has to connect
SUM_S = 1800.0  # where the driver says nothing; it gives each update a deadline of its own
ANSWER_S = 5.0  # that torch waits beyond a deadline
POLL_S = 5e-4
UNDER_WAY = 8  # messages: more than a stage sends on before it needs an answer to the oldest


def pack(parameters: Sequence[torch.nn.Parameter], is_finite: bool) -> torch.Tensor:
    """-> [gradients' elements + parameters + 1] float32: a learner's part of the sum."""
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in parameters
    ]
    flags = [float(parameter.grad is not None) for parameter in parameters]
    tail = torch.tensor([*flags, float(not is_finite)], device=gradients[0].device)
    return torch.cat([*(gradient.detach().float().flatten() for gradient in gradients), tail])


def unpack(total: torch.Tensor, parameters: Sequence[torch.nn.Parameter]) -> bool:
    """Makes the sum the parameters' gradients, views of it. -> whether each loss was finite."""
    *flags, not_finite = total[-len(parameters) - 1 :].tolist()
    sums = total[: -len(parameters) - 1].split([parameter.numel() for parameter in parameters])
    for parameter, gradient, having in zip(parameters, sums, flags, strict=True):
        parameter.grad = gradient.view_as(parameter).to(parameter) if having else None
    return not not_finite


def listen(host: str | None = None, deadline_s: float = JOIN_S) -> tuple[dist.TCPStore, str]:
    """-> (where the learners meet, its address), on a free port, for as long as the store is held.
    `host`: this node's address as the other learners reach it; None: its address in its network,
    the loopback's where it has none."""
    if host is None:
        try:
            host = own_address("8.8.8.8", 53)
        except OSError:
            host = "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        store = dist.TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=deadline_s),
            wait_for_workers=False,
            master_listen_fd=server.detach(),
        )
    return store, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Exchange:
    """One learner's end. Each joins, and calls `sum` equally often, until a PeerLost."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        address: str,
        *,
        store: Any = None,
        deadline_s: float = JOIN_S,
        shards: int = 1,
        partners: int = 1,
        stages: int = 1,
    ):
        """`store`: what `listen` returned. So many `partners`, one after the other by rank, do a
        pass together, as so many `stages` if more than one, and so many `shards` of a base. Raises
        PeerLost after `deadline_s`."""
        self.rank, self.world_size = rank, world_size
        self.store, self.group = store, None
        self.partners, self.back, self.sharers = None, None, None
        self.under_way: list[Any] = []  # what is being sent
        self.deadline_s = deadline_s  # of what partners ask of one another
        host, _, port = address.rpartition(":")
        host, timeout = host.strip("[]"), timedelta(seconds=deadline_s)
        with self._waiting(deadline_s):
            if store is None:
                self.store = dist.TCPStore(host, int(port), timeout=timeout, wait_for_workers=False)
            self.store.set(f"join/{rank}", own_card())
            names = [self.store.get(f"join/{other}") for other in range(world_size)]
            self.is_nccl = all(names) and len(set(names)) == world_size
            self.device = "cuda" if self.is_nccl else "cpu"  # of what travels
            build = nccl_group if self.is_nccl else gloo_group
            here = own_address(host, int(port))
            self.group = build(
                dist.PrefixStore("group", self.store), rank, world_size, timeout, here
            )
            for name, count in (("partners", partners), ("back", stages), ("sharers", shards)):
                if count > 1:
                    own = dist.PrefixStore(f"{name}/{rank // count}", self.store)
                    # what NCCL sends ahead may wait for long, and has this timeout
                    most = timedelta(seconds=SUM_S + ANSWER_S)
                    setattr(self, name, build(own, rank % count, count, most, here))
        # NCCL connects in its first sum, and waits for the others no longer than to join: that sum
        # is one of this moment, at which all are here, rather than that of an update.
        self.sum(torch.zeros(1, device=self.device), deadline_s)
        if stages > 1:
            self._connect(rank % stages, stages)
        self.deadline_s = SUM_S

    def _connect(self, stage: int, stages: int) -> None:
        """Sends something through all stages and back: NCCL connects two processes in their first
        message, which must not be while another one is on its way."""
        nothing = torch.zeros(1, device=self.device)
        for step, first, last in ((1, 0, stages - 1), (-1, stages - 1, 0)):
            if stage != first:
                self.receive(nothing, -step)
            if stage != last:
                self.send(nothing, step)
        self.sent()

    def sum(self, part: torch.Tensor, deadline_s: float) -> torch.Tensor:
        """[n], the same n in every learner -> the sum over all of them, on the same device.

        PeerLost after `deadline_s`, or as soon as another learner has died.
        """
        return self._reduced(self.group, part, deadline_s)

    def sum_gradients(
        self, parameters: Sequence[torch.nn.Parameter], is_finite: bool = True
    ) -> bool:
        """Makes the sum over all learners the parameters' gradients. -> whether each loss was
        finite. PeerLost as in `sum`."""
        return unpack(self.sum(pack(parameters, is_finite), self.deadline_s), parameters)

    def most(self, values: list[float]) -> list[float]:
        """The largest of each value over the partners. PeerLost as in `sum`."""
        return self.totals(values, dist.ReduceOp.MAX)

    def totals(self, values: list[float], by: Any = dist.ReduceOp.SUM) -> list[float]:
        """The sum of each value over the partners, or what `by` says. PeerLost as in `sum`."""
        found = torch.tensor(values, dtype=torch.float64, device=self.device)
        self.add_up(found, by)
        return found.tolist()

    def add_up(self, values: torch.Tensor, by: Any = dist.ReduceOp.SUM) -> None:
        """Makes the values their sum over the partners, or what `by` says. PeerLost as in `sum`."""
        values.copy_(self._reduced(self.partners, values, self.deadline_s, by))

    def _reduced(
        self, group: Any, values: torch.Tensor, deadline_s: float, by: Any = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        found = values.to(self.device)
        with self._waiting(deadline_s):
            options = timed(dist.AllreduceOptions(), deadline_s)
            options.reduceOp = by
            wait(self.joined(group).allreduce([found], options), deadline_s)
        return found.to(values.device)

    def swap(self, given: torch.Tensor, found: torch.Tensor) -> None:
        """[partners, ...], a part for each; fills `found`, as large, with a part from each.
        PeerLost as in `sum`."""
        into, given = found.to(self.device), given.to(self.device)
        with self._waiting(self.deadline_s):
            options = timed(dist.AllToAllOptions(), self.deadline_s)
            partners = self.joined(self.partners)
            wait(partners.alltoall_base(into, given, [], [], options), self.deadline_s)
        found.copy_(into)

    def gather(self, whole: torch.Tensor, part: torch.Tensor) -> Callable[[], None]:
        """Begins to fill `whole`, [n x bytes], with the `part`, [bytes], of each learner that
        shares a base. -> what waits for the end of it: PeerLost as in `sum`."""
        is_here = whole.device.type == self.device
        filled = whole if is_here else torch.empty_like(whole, device=self.device)
        with self._waiting(self.deadline_s):
            sharers = self.joined(self.sharers)
            if self.is_nccl:
                options = timed(AllgatherOptions(), self.deadline_s)
                works = [sharers._allgather_base(filled, part, options)]
            else:  # gloo's own gather fills a buffer as large as `whole` first
                parts = filled.chunk(sharers.size())
                parts[sharers.rank()].copy_(part)
                works = []
                for root, each in enumerate(parts):
                    options = timed(dist.BroadcastOptions(), self.deadline_s)
                    options.rootRank = root
                    works.append(sharers.broadcast([each], options))

        def finish() -> None:
            with self._waiting(self.deadline_s):
                for work in works:
                    wait(work, self.deadline_s)
            whole.copy_(filled)

        return finish

    def send(self, values: torch.Tensor, step: int) -> None:
        """To the partner `step` further; returns before they have arrived. PeerLost as in `sum`.

        What goes back has a group of its own: NCCL does what two processes send one another in the
        order of the calls, and each would wait for the other's message."""
        given = values.detach().contiguous().to(self.device)
        with self._waiting(self.deadline_s):
            partners = self.joined(self.partners if step > 0 else self.back)
            work = partners.send([given], partners.rank() + step, 0)
        self.under_way.append((work, given))
        self.sent(UNDER_WAY)

    def receive(self, values: torch.Tensor, step: int) -> torch.Tensor:
        """`values` filled with what the partner `step` further has sent. PeerLost as in `sum`."""
        found = values.to(self.device)
        with self._waiting(self.deadline_s):
            partners = self.joined(self.partners if step < 0 else self.back)
            work = partners.recv([found], partners.rank() + step, 0)
            work.wait(timedelta(seconds=self.deadline_s))  # gloo's is completed by waiting alone
        return found.to(values.device)

    def sent(self, most: int = 0) -> None:
        """Returns when all that was sent has arrived, but for `most` messages, and forgets what
        has. PeerLost as in `sum`."""
        with self._waiting(self.deadline_s):
            while self.under_way and (
                len(self.under_way) > most or self.under_way[0][0].is_completed()
            ):
                self.under_way[0][0].wait(timedelta(seconds=self.deadline_s))
                del self.under_way[0]

    def joined(self, group: Any) -> Any:
        """The group. PeerLost where this learner has left it."""
        if group is None:
            raise PeerLost(f"learner-{self.rank}", f"learner {self.rank} has left the others")
        return group

    def close(self) -> None:
        """Leaves the groups: learners that still wait for this one fail at once."""
        for group in (self.group, self.partners, self.back, self.sharers):
            if group is not None:
                with contextlib.suppress(RuntimeError):
                    group.abort()
        self.group = self.partners = self.back = self.sharers = self.store = None

    @contextlib.contextmanager
    def _waiting(self, deadline_s: float) -> Iterator[None]:
        """Turns what torch raises inside into a PeerLost."""
        try:
            yield
        except (RuntimeError, TimeoutError) as error:  # torch's DistError is a RuntimeError
            text = " ".join(str(error).split()) or f"nothing within {deadline_s:g} s"
            reason = text.rpartition("] ")[2].partition(". This is")[0][:200]
            self.close()
            raise PeerLost(
                f"learner-{self.rank}",
                f"learner {self.rank} of {self.world_size} waited for the others without success "
                f"({reason}): see the learners' logs, and continue from the last checkpoint with "
                "--resume",
            ) from None


def timed(options: Any, deadline_s: float) -> Any:
    """Options of a collective, with a timeout of its own: else it is that of joining."""
    options.timeout = timedelta(seconds=deadline_s + ANSWER_S)
    return options


def wait(work: Any, deadline_s: float) -> None:
    """Until a collective has ended; a signal's handler can run meanwhile. TimeoutError."""
    until = time.monotonic() + deadline_s
    while not work.is_completed():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(POLL_S)
    work.wait()


def gloo_group(store: Any, rank: int, world_size: int, timeout: timedelta, address: str) -> Any:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(store, rank, world_size, options)


def nccl_group(store: Any, rank: int, world_size: int, timeout: timedelta, address: str) -> Any:
    options = dist.ProcessGroupNCCL.Options()  # which torch's CPU build lacks
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, world_size, options)


def own_card() -> str:
    """The card that this process computes on; "" where it computes on a CPU."""
    if not torch.cuda.is_available():
        return ""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def own_address(host: str, port: int) -> str:
    """The address from which this process reaches `host`: one that the other learners reach too."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        return probe.getsockname()[0]

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
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import AllreduceOptions, PrefixStore, ProcessGroupGloo, TCPStore

from unslothrl.errors import PeerLost

JOIN_S = 300.0  # until all learners are there: each is ready, and only has to connect
SUM_S = 1800.0  # where the driver says nothing; it gives each update a deadline of its own
ANSWER_S = 5.0  # that torch waits beyond a deadline
POLL_S = 5e-4


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


def listen(host: str | None = None, deadline_s: float = JOIN_S) -> tuple[TCPStore, str]:
    """-> (where the learners meet, its address), on a free port, for as long as the store is held.
    `host`: this node's address as the other learners reach it; None: asked of the system."""
    host = node_address() if host is None else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        store = TCPStore(
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
    ):
        """`store`: what `listen` returned. Raises PeerLost after `deadline_s`."""
        self.rank, self.world_size = rank, world_size
        self.store, self.group = store, None
        host, _, port = address.rpartition(":")
        host, timeout = host.strip("[]"), timedelta(seconds=deadline_s)
        with self._waiting(deadline_s):
            if store is None:
                self.store = TCPStore(host, int(port), timeout=timeout, wait_for_workers=False)
            self.store.set(f"join/{rank}", own_card())
            names = [self.store.get(f"join/{other}") for other in range(world_size)]
            self.is_nccl = all(names) and len(set(names)) == world_size
            build = nccl_group if self.is_nccl else gloo_group
            here = own_address(host, int(port))
            self.group = build(PrefixStore("group", self.store), rank, world_size, timeout, here)
        # NCCL connects in its first sum, and waits for the others no longer than to join: that sum
        # is one of this moment, at which all are here, rather than that of an update.
        self.sum(torch.zeros(1, device="cuda" if self.is_nccl else "cpu"), deadline_s)

    def sum(self, part: torch.Tensor, deadline_s: float) -> torch.Tensor:
        """[n], the same n in every learner -> the sum over all of them, on the same device.

        PeerLost after `deadline_s`, or as soon as another learner has died.
        """
        if self.group is None:
            raise PeerLost(f"learner-{self.rank}", f"learner {self.rank} has left the others")
        total = part if self.is_nccl else part.cpu()
        options = AllreduceOptions()
        options.timeout = timedelta(seconds=deadline_s + ANSWER_S)  # else the group's, of joining
        with self._waiting(deadline_s):
            work = self.group.allreduce([total], options)
            until = time.monotonic() + deadline_s
            while not work.is_completed():
                if time.monotonic() > until:
                    raise TimeoutError
                time.sleep(POLL_S)
            work.wait()
        return total.to(part.device)

    def close(self) -> None:
        """Leaves the group: learners that still wait for this one fail at once."""
        if self.group is not None:
            with contextlib.suppress(RuntimeError):
                self.group.abort()
        self.group = self.store = None

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


def gloo_group(store: Any, rank: int, world_size: int, timeout: timedelta, address: str) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    return ProcessGroupGloo(store, rank, world_size, options)


def nccl_group(store: Any, rank: int, world_size: int, timeout: timedelta, address: str) -> Any:
    from torch.distributed import ProcessGroupNCCL  # not in torch's CPU build

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, world_size, options)


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


def node_address() -> str:
    """This machine's address in its network; the loopback's where it has none."""
    try:
        return own_address("8.8.8.8", 53)
    except OSError:
        return "127.0.0.1"

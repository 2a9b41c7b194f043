"""A frozen base of which each of several learners keeps a part (ZeRO, arXiv 1910.02054, stage 3, of
weights that are not trained).

    unit    what is gathered at once: a decoder layer's packed weights with their scales, the
            embedding, the output layer
    part    this rank's 1/N of a unit's bytes, which it keeps
    whole   the unit's bytes, whose storage has memory only while they are needed

A unit is gathered from all ranks just before it computes: forward, recomputed by a checkpoint, and
backward. The next one is fetched meanwhile, and at most `RESIDENT` are whole at once. The LoRA,
norms and biases are whole in every rank, so what trains, is saved and is published is as without
shards.

All ranks do the same gathers in the same order: who has fewer micro-batches takes part without
computing (`idle`). Before each gather they agree that none has run out of memory, so that all begin
a pass anew where one must.

Storages are resized and never replaced: bitsandbytes' MatMul4Bit holds the packed weight outside of
autograd's saved tensors (bitsandbytes/autograd/_functions.py), where a new tensor would leave the
bytes of every layer alive.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from unslothrl.system.memory import MemoryElsewhere

RESIDENT = 2  # units that are whole at once: the one that computes and the next
ALIGNED = 16  # bytes, so that views of any type are legal


Peers = Any
"""The ranks that do a pass together: a learner's `exchange.Exchange` with its partners."""


def agree(peers: Peers, has_failed: bool = False) -> None:
    """Before what all ranks must do together, and at the end of a pass; all call it as often.
    Raises MemoryElsewhere where another one `has_failed`."""
    (somewhere,) = peers.most([float(has_failed)])
    if somewhere and not has_failed:
        raise MemoryElsewhere("memory ran out in another learner that shares the work")


class Unit:
    """Tensors that are gathered together, as views of one flat buffer of bytes."""

    def __init__(
        self,
        owners: list[tuple[Any, str]],
        rank: int,
        count: int,
        device: torch.device,
        leaves: bool,
    ):
        """`owners`: (object, attribute) of each tensor, on the host; their tensors become views. Of
        the host's bytes only this rank's part is read, which stays there where it `leaves`."""
        tensors = [getattr(owner, name).detach() for owner, name in owners]
        sizes = [-(-each.numel() * each.element_size() // ALIGNED) * ALIGNED for each in tensors]
        part = -(-sum(sizes) // (ALIGNED * count)) * ALIGNED
        here = torch.zeros(part, dtype=torch.uint8, pin_memory=leaves and device.type == "cuda")
        self.whole = torch.empty(part * count, dtype=torch.uint8, device=device)
        self.finish: Callable[[], None] | None = None  # of a gather that is under way
        begins = itertools.accumulate(sizes, initial=0)
        for (owner, name), tensor, begin in zip(owners, tensors, begins, strict=False):
            flat = tensor.contiguous().view(torch.uint8).flatten()
            view = self.whole[begin : begin + len(flat)]
            setattr(owner, name, view.view(tensor.dtype).view(tensor.shape))
            own = slice(max(begin, rank * part), min(begin + len(flat), (rank + 1) * part))
            if own.start < own.stop:
                here[own.start - rank * part : own.stop - rank * part] = flat[
                    own.start - begin : own.stop - begin
                ]
        self.free()
        self.on_host = here if leaves else None
        self.part: torch.Tensor | None = None if leaves else here.to(device)

    def free(self) -> None:
        self.whole.untyped_storage().resize_(0)

    def wait(self) -> None:
        """Until its gather, if any, has ended: memory that is being written must not be freed."""
        if self.finish is not None:
            finish, self.finish = self.finish, None
            finish()


class Shards:
    """Of one base. `peers` is set once the ranks have met."""

    def __init__(
        self, model: Any, rank: int, count: int, device: torch.device, leaves: bool = False
    ):
        """`model`: a causal model of transformers on the host, of which the shared part moves to
        `device`; `leaves`: it is there between `to_device` and `to_host` alone."""
        self.peers: Peers = None
        self.here: dict[Unit, None] = {}  # whole, or about to be; the oldest first
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        modules = [embedding, *model.model.layers, head]
        self.order: list[Unit] = []
        units: dict[int, Unit] = {}  # by the first weight: a tied head is the embedding's
        for position, module in enumerate(modules):
            owners = list(weights_of(module))
            if id(owners[0][0]) not in units:
                units[id(owners[0][0])] = Unit(owners, rank, count, device, leaves)
            self.order.append(units[id(owners[0][0])])
            module.register_forward_pre_hook(partial(self._before, position))
            module.register_forward_hook(partial(self._after, position))

    @property
    def units(self) -> Iterable[Unit]:
        return dict.fromkeys(self.order)

    def idle(self, head: bool, backward: bool = False) -> None:
        """Takes part in the gathers of a forward pass, with the output layer or without, and of its
        backward pass, and computes nothing."""
        positions = range(len(self.order) if head else len(self.order) - 1)
        for position in positions if not backward else reversed(positions[1:]):
            self.need(position, -1 if backward else 1)

    def need(self, position: int, step: int) -> None:
        """Returns when the unit at that position is whole; the next one in the direction `step`
        is on its way."""
        unit = self.order[position]
        if position == 0 and step > 0:  # or both tables would be whole, which are the largest
            self._keep(lambda each: each is unit or each is not self.order[-1])
        self._fetch(unit)
        unit.wait()
        if 0 <= position + step < len(self.order):
            self._fetch(self.order[position + step])

    def _fetch(self, unit: Unit) -> None:
        if unit in self.here:
            self.here[unit] = self.here.pop(unit)
            return
        newest = list(self.here)[1 - RESIDENT :]
        self._keep(newest.__contains__)
        self.here[unit] = None  # first, so that it is freed whatever comes
        unit.whole.untyped_storage().resize_(len(unit.whole))
        agree(self.peers)
        unit.finish = self.peers.gather(unit.whole, unit.part)

    def to_host(self) -> None:
        """Between updates: leaves the device to others until `to_device`."""
        for unit in self.units:
            unit.part = None

    def to_device(self) -> None:
        for unit in self.units:
            if unit.part is None and unit.on_host is not None:
                unit.part = unit.on_host.to(unit.whole.device, non_blocking=True)

    def drop(self) -> None:
        """Between passes: frees what is whole."""
        self._keep(lambda unit: False)

    def _keep(self, wanted: Callable[[Unit], bool]) -> None:
        for unit in [unit for unit in self.here if not wanted(unit)]:
            unit.wait()
            unit.free()
            del self.here[unit]

    def _before(self, position: int, module: Any, inputs: Any) -> None:
        # a checkpoint's forward runs inside a backward pass, which goes on downwards
        self.need(position, 1 if torch._C._current_graph_task_id() == -1 else -1)

    def _after(self, position: int, module: Any, inputs: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        if states.requires_grad and position:
            states.register_hook(lambda gradient: self.need(position, -1))


def weights_of(module: torch.nn.Module) -> Iterator[tuple[Any, str]]:
    """(object, attribute) of each tensor of a unit: packed weights with their scales, or the matrix
    of a linear layer or an embedding that is not quantised."""
    for each in module.modules():
        weight = getattr(each, "weight", None)
        if weight is None or weight.dim() != 2:
            continue
        yield weight, "data"
        state = getattr(weight, "quant_state", None)
        if state is not None:
            yield state, "absmax"

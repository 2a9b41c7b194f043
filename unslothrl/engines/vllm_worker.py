"""What runs in the worker processes of a vLLM that is split over several cards.

vLLM sends a function by its module and name, calls it in each worker with the worker's part of the
model, and returns what they return.
"""

import mmap
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unslothrl.engines import vllm_internals
from unslothrl.engines.readback import LoraState, manager_of, problem_of, state_of
from unslothrl.errors import AdapterDamaged
from unslothrl.planning.tensor_parallel import BLOCK
from unslothrl.system.memory import peak_memory_mb
from unslothrl.weights.adapter import WEIGHTS_FILE, Adapter
from unslothrl.weights.published import PackedWeights, Published

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
SPLIT_BY_INPUT = ("o_proj", "down_proj")  # the others are split by output

siblings: tuple[int, ...] = ()  # the other workers of the same actor


class EndsWithItsActor:
    """Mixed into vLLM's worker (`worker_extension_cls`), which then ends when the actor does.

    vLLM's own watch on its parent only asks the worker to stop; one that waits for another worker,
    or is stopped, would hold its card for ever.
    """

    def __new__(cls, *arguments: Any, **keywords: Any) -> "EndsWithItsActor":
        parent = multiprocessing.parent_process()
        if parent is not None:
            threading.Thread(target=end_after, args=(parent,), name="parent", daemon=True).start()
        vllm_internals.hide_flashinfer()
        vllm_internals.leave_out_router_kernels()
        return super().__new__(cls)


def end_after(parent: Any) -> None:
    """Waits for the end of a process, then ends this one and its siblings, however they are."""
    parent.join()
    for pid in (*siblings, os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def process_id(model: Any) -> int:
    return os.getpid()


def know_siblings(pids: tuple[int, ...], model: Any) -> None:
    global siblings
    siblings = tuple(pid for pid in pids if pid != os.getpid())


def peak_mb(model: Any) -> float:
    """See `memory.peak_memory_mb`, of this worker."""
    return peak_memory_mb()


@dataclass(frozen=True)
class PublishedFile:
    """A version as the files that vLLM reads, instead of its bytes, for each worker to read too."""

    version: int
    folder: Path
    config: str
    checksum: str  # of the weights that were published

    @classmethod
    def of(cls, adapter: Adapter, folder: Path) -> "PublishedFile":
        return cls(adapter.version, folder, adapter.config, adapter.checksum)

    def read(self) -> Published:
        """AdapterDamaged where the file is not what was published, OSError where it is gone."""
        with (self.folder / WEIGHTS_FILE).open("rb") as file:
            weights = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        adapter = Adapter.read(self.version, weights, self.config, self.checksum)
        adapter.verify()
        return Published(adapter)


def lora_problem(id: int, file: PublishedFile, model: Any) -> str | None:
    """`readback.problem_of` of this worker's part."""
    try:
        published = file.read()
    except (OSError, ValueError, AdapterDamaged) as error:
        return f"what vLLM reads it from is not what was published ({error})"
    return problem_of(id, published, model)


def lora_state(model: Any) -> LoraState:
    return state_of(manager_of(model))


def take_scales(base: Path, model: Any) -> str | None:
    """Gives this worker's 4-bit weights the scales of the checkpoint `base`. -> what of them is not
    its part of it, None where nothing is.

    bitsandbytes stores scales in 8 bits around their mean: that of the whole matrix in the
    checkpoint, that of the part where a worker has quantised it alone. Weights would differ by half
    a percent.
    """
    return _compared(base, model, takes=True)


def base_problem(base: Path, model: Any) -> str | None:
    """What of this worker's 4-bit weights is not its part of the checkpoint `base`, None where
    nothing is."""
    return _compared(base, model, takes=False)


def _compared(base: Path, model: Any, takes: bool) -> str | None:
    whole, rank, compared = PackedWeights(base), own_rank(), 0
    for module, packed, state, by_input in quantised_in(model):
        name = f"{module}.weight"
        if name not in whole.files:
            return f"{module} is not in 4 bits in {base}"
        shape = tuple(state.shape)
        if not torch.equal(packed.cpu(), part_of(whole.tensor(name), shape, by_input, rank)):
            return f"{module} has other 4-bit weights on card {rank} than {base}"
        scales = part_of(whole.scales(name), shape, by_input, rank, each=BLOCK)
        if takes:
            state.absmax.copy_(scales.view_as(state.absmax))  # in place: CUDA graphs read it there
        elif not torch.equal(state.absmax.cpu().flatten(), scales):
            return f"{module} has other scales on card {rank} than {base}"
        compared += 1
    return None if compared else "it has no 4-bit weights"


def own_rank() -> int:
    from vllm.distributed import get_tensor_model_parallel_rank

    return get_tensor_model_parallel_rank()


def quantised_in(model: Any) -> Iterator[tuple[str, torch.Tensor, Any, bool]]:
    """(name in the checkpoint, packed bytes, bitsandbytes' `QuantState`, whether it is split by
    input) of every 4-bit matrix; vLLM lays those of q, k and v, and of gate and up, end to end."""
    for name, parameter in model.named_parameters():
        if not hasattr(parameter, "bnb_quant_state"):
            continue
        parent, _, own = name.removesuffix(".weight").removesuffix(".base_layer").rpartition(".")
        offsets = parameter.bnb_shard_offsets.tolist()
        for at, state in parameter.bnb_quant_state.items():
            packed = parameter.detach()[offsets[at] : offsets[at + 1]].flatten()
            yield f"{parent}.{FUSED.get(own, (own,))[at]}", packed, state, own in SPLIT_BY_INPUT


def part_of(
    packed: torch.Tensor, shape: tuple[int, ...], by_input: bool, rank: int, each: int = 2
) -> torch.Tensor:
    """A worker's part, of that (out, in), of a matrix whose elements hold `each` values of a row:
    packed bytes two, scales 64."""
    outputs, inputs = shape
    if by_input:
        begin = rank * inputs // each
        columns = packed.view(outputs, -1)[:, begin : begin + inputs // each]
        return columns.flatten().contiguous()  # a single column is flattened without a copy
    size = outputs * inputs // each
    return packed[rank * size : (rank + 1) * size]

"""A vLLM that is split over several GPUs of a node, each matrix (tensor parallelism) or layer by
layer (pipeline parallelism).

The engine itself, its scheduler included, is in the actor's process; vLLM's workers, one a GPU, are
children of it. Where matrices are split, the base is a 16-bit checkpoint, of which every worker
quantises its part; stages read their layers of the 4-bit one. vLLM
sends a function to its workers by its module and name, calls it in each with the worker's part of
the model, and returns what they return.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unslothrl.engines import vllm, vllm_internals
from unslothrl.engines.readback import Slots, lora_state, problem_of
from unslothrl.errors import AdapterDamaged, ProcessLost, RunError
from unslothrl.planning.dividing import BLOCK
from unslothrl.system.machine import usable_cpus
from unslothrl.system.memory import peak_memory_mb
from unslothrl.system.variables import PROCESS
from unslothrl.weights import base_model
from unslothrl.weights.adapter import WEIGHTS_FILE, Adapter
from unslothrl.weights.published import PackedWeights, Published

LOOK_EVERY = 16  # steps, of which one asks the workers for the state of their slots


def start(
    base: Path,
    source: Path,
    workers: int,
    *,
    on_gpu: bool,
    stages: int = 1,
    takes_turns: bool = False,
    **chosen: Any,
) -> "SplitVllmEngine":
    """Loads `source`, the 16-bit checkpoint that `base` was quantised from, into that many workers,
    or `base` itself into so many `stages`; the other keywords are those of
    `vllm_internals.options`. This process uses no GPU itself."""
    vllm.set_variables()
    from vllm import LLM

    keywords = vllm_internals.options(
        source,
        workers=workers,
        stages=stages,
        takes_turns=takes_turns,
        on_gpu=on_gpu,
        **chosen,
    )
    set_variables_of(workers * stages)
    llm = LLM(**keywords)
    if stages > 1 and not on_gpu:
        llm.collective_rpc("make_room")
    return SplitVllmEngine(llm, base, takes_turns and on_gpu)


def set_variables_of(workers: int) -> None:
    """vLLM starts its workers as new processes, since a fork of one that has threads may hang, each
    with a part of this process's threads: more of those than cores are worse than few."""
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    threads = int(os.environ.get("OMP_NUM_THREADS") or usable_cpus())
    os.environ["OMP_NUM_THREADS"] = str(max(1, threads // workers))


class SplitSlots(Slots):
    """What the workers' slots hold: each compares its part of what was published."""

    def __init__(self, llm: Any):
        super().__init__(llm)
        self.steps = 0

    def published_as(self, adapter: Adapter, folder: Path) -> "PublishedFile":
        return PublishedFile(adapter.version, folder, adapter.config, adapter.checksum)

    def problems(self, id: int, published: "PublishedFile") -> list[str | None]:
        problems = self.llm.apply_model(partial(lora_problem, id, published))
        return [
            None if problem is None else f"on GPU {gpu} of {len(problems)}, {problem}"
            for gpu, problem in enumerate(problems)
        ]

    def check_step(self) -> None:
        """Every so many steps: to ask the workers takes longer than to look."""
        self.steps += 1
        if self.published and self.steps % LOOK_EVERY == 0:
            for layout, drawn_under in self.llm.apply_model(lora_state):
                self.check_drawn(drawn_under)
                self.check_layout(layout)


def watched(method: Callable[..., Any]) -> Any:
    """A method of an engine, which raises ProcessLost where a worker has died in it."""

    @functools.wraps(method)
    def call(self: "SplitVllmEngine", *arguments: Any) -> Any:
        with self.watching():
            return method(self, *arguments)

    return call


class SplitVllmEngine(vllm.VllmEngine):
    """See `VllmEngine`. Raises ProcessLost where a worker has died: none can be replaced alone."""

    slots_of = SplitSlots

    def __init__(self, llm: Any, base: Path, takes_turns: bool = False):
        self.llm, self.base = llm, base
        check_base(self.in_workers(partial(base_problem, base, True)))
        self.last_layers = tuple(sorted(set(self.in_workers(last_layer))))
        super().__init__(llm, base, takes_turns)  # which sleeps

    def in_workers(self, function: Callable[[Any], Any]) -> list[Any]:
        """What a function, which gets a worker's part of the model, returns in each."""
        with self.watching():
            return self.llm.apply_model(function)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """What vLLM raises inside it where a worker has died hangs on where it was."""
        try:
            yield
        except Exception as error:
            processes = [worker.proc for worker in self.executor.workers]
            dead = [process.pid for process in processes if not process.is_alive()]
            if not dead and not self.executor.is_failed:
                raise
            name = os.environ.get(PROCESS, "an actor")
            raise ProcessLost(name, f"{name} has lost vLLM's worker {dead or ''}") from error

    @property
    def executor(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.model_executor

    load = watched(vllm.VllmEngine.load)
    add = watched(vllm.VllmEngine.add)
    step = watched(vllm.VllmEngine.step)
    abort = watched(vllm.VllmEngine.abort)
    canary = watched(vllm.VllmEngine.canary)
    sleep = watched(vllm.VllmEngine.sleep)

    def fingerprint(self) -> str:
        """That of the 4-bit base, whose part each worker must have. RunError."""
        self.wake()
        check_base(self.in_workers(partial(base_problem, self.base, False)))
        self.sleep()
        whole = PackedWeights(self.base)
        return base_model.fingerprint(whole.files, whole.tensor)

    def memory_mb(self) -> float:
        return max(self.in_workers(peak_mb))

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.llm.llm_engine.engine_core.shutdown()


def check_base(problems: Sequence[str | None]) -> None:
    """Raises RunError where a worker has found one."""
    for problem in problems:
        if problem is not None:
            raise RunError(
                f"vLLM's workers hold a different base than the learner: {problem}; a base that is "
                "not in bfloat16 they quantise otherwise"
            )


# In the worker processes.


class EndsWithItsActor:
    """Mixed into vLLM's worker (`worker_extension_cls`), which then ends when the actor does.

    vLLM's own watch on its parent only asks the worker to stop; one that waits for another worker
    would hold its GPU for ever.
    """

    def __new__(cls, *arguments: Any, **keywords: Any) -> "EndsWithItsActor":
        parent = multiprocessing.parent_process()
        if parent is not None:
            threading.Thread(target=end_after, args=(parent,), name="parent", daemon=True).start()
        vllm_internals.hide_flashinfer()
        vllm_internals.leave_out_router_kernels()
        if not torch.cuda.is_available():
            vllm_internals.multiply_on_cpu()
        return super().__new__(cls)

    def make_room(self) -> None:
        """On a CPU, what a later stage receives into: vLLM makes it in a warm-up that a CPU leaves
        out (0.32, v1/worker/gpu_model_runner.py:5801)."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        if runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device
            )


def last_layer(model: Any) -> int:
    """The number of the last layer that this worker has."""
    return model.model.end_layer - 1


def end_after(parent: Any) -> None:
    """Waits for the end of a process, then ends this one, whatever it does."""
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


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

    def read(self) -> Published:
        """AdapterDamaged where the file is not what was published, OSError where it is gone."""
        weights = (self.folder / WEIGHTS_FILE).read_bytes()
        adapter = Adapter.of(self.version, weights, self.config, self.checksum)
        adapter.verify()
        return Published(adapter)


def lora_problem(id: int, file: PublishedFile, model: Any) -> str | None:
    """`readback.problem_of` of this worker's part."""
    try:
        published = file.read()
    except (OSError, ValueError, AdapterDamaged) as error:
        return f"what vLLM reads it from is not what was published ({error})"
    return problem_of(id, published, model)


def base_problem(base: Path, takes_scales: bool, model: Any) -> str | None:
    """What of this worker's 4-bit weights is not its part of the checkpoint `base`, None where
    nothing is. `takes_scales`: they are given those of the checkpoint.

    bitsandbytes stores scales in 8 bits around their mean: that of the whole matrix in the
    checkpoint, that of the part where a worker has quantised it alone. Weights would differ by half
    a percent.
    """
    from vllm.distributed import get_tensor_model_parallel_rank, get_world_group

    rank, gpu = get_tensor_model_parallel_rank(), get_world_group().rank
    whole, compared = PackedWeights(base), 0
    for module, packed, state, by_input in vllm_internals.quantised_in(model):
        name = f"{module}.weight"
        if name not in whole.files:
            return f"{module} is not in 4 bits in {base}"
        shape = tuple(state.shape)
        if not torch.equal(packed.cpu(), part_of(whole.tensor(name), shape, by_input, rank)):
            return f"{module} has other 4-bit weights on GPU {gpu} than {base}"
        scales = part_of(whole.scales(name), shape, by_input, rank, each=BLOCK)
        if takes_scales:
            state.absmax.copy_(scales.view_as(state.absmax))  # in place: CUDA graphs read it there
        elif not torch.equal(state.absmax.cpu().flatten(), scales):
            return f"{module} has other scales on GPU {gpu} than {base}"
        compared += 1
    return None if compared else "it has no 4-bit weights"


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

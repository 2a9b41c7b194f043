"""Reads the LoRA back from vLLM's slots and compares it with what the learner has published.

vLLM reads an adapter from files, casts it to the slots' dtype, multiplies B by alpha / r, puts q, k
and v (gate and up) beside one another, and copies them into one of `max_loras` slots of every
layer that it has wrapped. Each of these is undone or repeated here on the published tensors, so
that the comparison is exact. Log-probabilities cannot replace it: at a learning rate of 2e-5 two
neighbouring versions differ by 0.0013 a token, bfloat16 and float32 by 0.015.

What is read of vLLM, in 0.26 and 0.32 alike: `model.lora_manager` with `modules`,
`packed_modules_mapping`, `lora_index_to_id` and `_last_mapping` (lora/model_manager.py), and a
layer's `lora_a_stacked` and `lora_b_stacked` (lora/layers/base_linear.py), [slots, 1, rank, in] and
[slots, 1, out, rank] for each of the matrices that it packs. The mapper that renames an adapter's
modules without stacking them has another name from 0.29 on.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unslothrl.errors import AdapterMismatch
from unslothrl.weights.adapter import Adapter
from unslothrl.weights.published import Published, difference

LORA_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LAYER = re.compile(r".*?\.(\d+)\.")  # of a module's name
NO_ADAPTER = 0  # vLLM's id of a request that has none


class Slots:
    """What one vLLM, whose model is in this process, holds in its slots."""

    def __init__(self, llm: Any):
        self.llm = llm
        self.published: dict[int, Any] = {}  # by vLLM's id of the adapter
        self.layout: list[int | None] = []  # the slots' ids when they were last compared
        self.mapping: Any = None  # vLLM's latest that was looked at

    @cached_property
    def manager(self) -> Any:
        return self.llm.apply_model(manager_of)[0]

    def loaded(self, id: int, adapter: Adapter, folder: Path) -> None:
        """vLLM has loaded `adapter` from `folder`. AdapterMismatch if a slot differs."""
        published = self.published_as(adapter, folder)
        self.published.pop(id, None)
        self._compare(id, published)
        self.published[id] = published
        self.layout = self.current_layout()

    def published_as(self, adapter: Adapter, folder: Path) -> Any:
        """What slots are compared with; it has a `version`."""
        return Published(adapter)

    def unloaded(self, id: int) -> None:
        self.published.pop(id, None)

    def _compare(self, id: int, published: Any) -> None:
        """Raises AdapterMismatch unless the slot of that id holds what was published, exactly."""
        for problem in self.problems(id, published):
            if problem is not None:
                raise AdapterMismatch.of(published.version, problem)

    def problems(self, id: int, published: Any) -> Sequence[str | None]:
        """What differs in the slot of that id; None where nothing does."""
        return self.llm.apply_model(partial(problem_of, id, published))

    def current_layout(self) -> list[int | None]:
        return self.llm.apply_model(lora_state)[0][0]

    def compare_all(self) -> None:
        """After the engine has slept."""
        for id in self.current_layout():  # one that was pushed out is compared when it comes back
            if id in self.published:
                self._compare(id, self.published[id])

    def check_step(self) -> None:
        """After a step of vLLM: the batch was drawn under adapters that are loaded, and what has
        moved to another slot (there may be more versions in flight than slots) is compared again.

        Microseconds where nothing has changed.
        """
        if not self.published:
            return
        mapping = self.manager._last_mapping
        if mapping is not None and mapping is not self.mapping:
            self.mapping = mapping
            self.check_drawn(set(mapping.prompt_mapping))
        self.check_layout(self.manager.lora_index_to_id)

    def check_drawn(self, ids: set[int]) -> None:
        """Raises AdapterMismatch where a batch was drawn under others than are loaded."""
        unknown = ids - self.published.keys()
        if unknown:
            newest = max(each.version for each in self.published.values())
            under = f"under an adapter that is not loaded (vLLM's id {min(unknown)})"
            under = "without an adapter" if NO_ADAPTER in unknown else under
            raise AdapterMismatch.of(newest, f"a request was drawn {under}")

    def check_layout(self, layout: Sequence[int | None]) -> None:
        if list(layout) != self.layout:
            before, self.layout = self.layout, list(layout)
            for slot, id in enumerate(layout):
                if id in self.published and before[slot : slot + 1] != [id]:
                    self._compare(id, self.published[id])


def manager_of(model: Any) -> Any:
    """vLLM's LoRAModelManager. AdapterMismatch where it has none."""
    manager = getattr(model, "lora_manager", None)
    if manager is None or not manager.modules:
        raise AdapterMismatch("vLLM has no layer with a LoRA: set --engine transformers")
    return manager


def lora_state(model: Any) -> tuple[list[int | None], set[int]]:
    """-> (the slots' adapters, those that the latest batch was drawn under), by vLLM's ids."""
    manager = manager_of(model)
    mapping = manager._last_mapping
    return list(manager.lora_index_to_id), set() if mapping is None else set(mapping.prompt_mapping)


class Held(NamedTuple):
    """A matrix of a wrapped layer."""

    module: str  # "model.layers.0.self_attn.q_proj"
    a: torch.Tensor  # [slot's rank, in], of this worker's shard
    b: torch.Tensor  # [out, slot's rank]
    layer: Any


def problem_of(id: int, published: Published, model: Any) -> str | None:
    """Runs in each worker of vLLM. -> what differs first, None where nothing does."""
    manager = manager_of(model)
    if id not in manager.lora_index_to_id:
        return f"none of its {len(manager.lora_index_to_id)} slots is this adapter's"
    slot = manager.lora_index_to_id.index(id)
    matrices, seen = by_module(published, model), set()
    for held in held_in(manager, slot):
        pair = matrices.get(held.module)
        seen.add(held.module)
        problem = None if pair is None else matrix_problem(held, *pair)
        if pair is None and held.a.any() and held.b.any():  # another version's may be left there
            problem = f"{held.module} has a LoRA, and none was published for it"
        if problem is not None:
            return f"in slot {slot}, {problem}"
    left = [name for name in matrices.keys() - seen if not is_elsewhere(name, model)]
    if left:
        return f"vLLM has no layer with a LoRA for {min(left)} and {len(left) - 1} others"
    return None


def is_elsewhere(module: str, model: Any) -> bool:
    """Whether a module's layer is another stage's, where vLLM's layers are divided."""
    layer = LAYER.match(module)
    if layer is None or not hasattr(model.model, "end_layer"):
        return False
    return not model.model.start_layer <= int(layer[1]) < model.model.end_layer


def by_module(published: Published, model: Any) -> dict[str, tuple[dict, float]]:
    """({"a": tensor, "b": tensor}, scaling) of each module by vLLM's name of it."""
    from vllm.lora.utils import parse_fine_tuned_lora_name

    mapper: Any = getattr(model, "hf_to_vllm_mapper", None)
    for without_stacking in ("get_rename_mapper", "get_unstacked_mapper"):  # 0.29 and later; before
        if hasattr(mapper, without_stacking):
            mapper = getattr(mapper, without_stacking)()
            break
    halves_of: dict[str, tuple[dict, float]] = {}
    for name, tensor in published.tensors.items():
        module, is_a = parse_fine_tuned_lora_name(name, mapper)
        halves, _ = halves_of.setdefault(module, ({}, published.scaling))
        halves["a" if is_a else "b"] = tensor
    return halves_of


def held_in(manager: Any, slot: int) -> Iterator[Held]:
    """Every matrix that a slot has, of every wrapped layer. Where a layer has more slices than
    matrices, the first matrix has those that the others leave: A stands in each, B is divided among
    them (lora/layers/column_parallel_linear.py:268: q, k and v of in_proj_qkv)."""
    for name, layer in manager.modules.items():
        if isinstance(layer.lora_a_stacked, torch.Tensor):
            continue  # the embedding's or the output layer's, of which nothing is published
        parent, _, own = name.rpartition(".")
        packed = manager.packed_modules_mapping.get(own, [own])
        a, b = (
            [each[slot, 0] for each in some]
            for some in (layer.lora_a_stacked, layer.lora_b_stacked)
        )
        more = len(a) - len(packed)
        if more < 0:
            continue  # an adapter for it is reported as one without a layer
        b = [torch.cat(b[: more + 1]), *b[more + 1 :]]
        for at, part_of_a in enumerate(a):
            at = max(0, at - more)
            module = f"{parent}.{packed[at]}" if parent else packed[at]
            yield Held(module, part_of_a, b[at], layer)


def matrix_problem(held: Held, halves: dict[str, torch.Tensor], scaling: float) -> str | None:
    """What of a matrix is not as published; the rank may be less than the slot's."""
    if held.a.dtype not in LORA_DTYPES or held.b.dtype != held.a.dtype:
        return f"{held.module} is in {held.a.dtype} and {held.b.dtype}"
    a, b = (halves[half].to(held.a.dtype) for half in "ab")
    if scaling != 1:
        b = b * scaling  # in the slots' dtype, as vLLM does
    rank, rank_held = len(a), len(held.a)
    a = shard(a, 1, held.a.shape[1], held.layer)
    b = shard(b, 0, held.b.shape[0], held.layer)
    for name, slot, rest, expected in (
        ("lora_A", held.a[:rank], held.a[rank:], a),
        ("lora_B", held.b[:, :rank], held.b[:, rank:], b),
    ):
        if problem := difference(f"{held.module}.{name}", slot, expected):
            return problem
        if rank < rank_held and rest.any():
            return f"{held.module}.{name} is not zero beyond rank {rank}"
    return None


def shard(tensor: torch.Tensor, dim: int, size: int, layer: Any) -> torch.Tensor:
    """A worker's part of a tensor; heads that are fewer than the workers are repeated on them."""
    if tensor.shape[dim] <= size:
        return tensor
    shards = tensor.shape[dim] // size
    return tensor.narrow(dim, layer.tp_rank * shards // layer.tp_size * size, size)

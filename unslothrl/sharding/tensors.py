"""A base whose matrices are split over several learners (Megatron-LM, arXiv 1909.08053).

    q k v gate up    by rows: a rank has some of the heads, and a part of the MLP's width
    o down           by columns: a rank's output is a part of a sum

What enters a layer is the same in all ranks, and so is what leaves it: an all-reduce after o and
after down forward, one of the gradients before q, k, v and before gate, up backward. Every rank has
the whole LoRA and computes with the slice that goes with its part of the matrix, so that the sum of
the learners' gradients is the gradient, as without a split.

4-bit matrices are split between blocks of 64 weights, and their scales kept in float32.
"""

from functools import partial
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch.nn.functional import linear

from unslothrl.planning.dividing import BLOCK
from unslothrl.sharding.shards import Peers, agree

BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
BY_COLUMNS = ("o_proj", "down_proj")


class SplitTensors:
    """This rank's part of every layer. `peers` is set once the ranks have met."""

    def __init__(self, model: Any, rank: int, count: int):
        """`model`: a causal model of transformers, without a LoRA, that can be split: see
        `planning.dividing`."""
        self.rank, self.count = rank, count
        self.peers: Peers = None
        for layer in model.model.layers:
            for module in (layer.self_attn, layer.mlp):
                for name in (*BY_ROWS, *BY_COLUMNS):
                    if hasattr(module, name):
                        keep_part(getattr(module, name), rank, count, 0 if name in BY_ROWS else 1)
                module.register_forward_pre_hook(self._before, with_kwargs=True)

    def attach(self, model: Any) -> None:
        """To the LoRA's layers of a model that was split, and those by columns without a LoRA."""
        for path, layer in model.named_modules():
            name = path.rpartition(".")[2]
            if isinstance(layer, LoraLayer):
                axis = 0 if name in BY_ROWS else 1
                layer.forward = partial(self._forward, layer, axis)  # type: ignore[attr-defined]
            elif name in BY_COLUMNS:
                layer.register_forward_hook(lambda module, inputs, output: self.total(output))

    def _before(self, module: Any, inputs: tuple, named: dict[str, Any]) -> tuple:
        """Of attention or an MLP: the gradient of what enters it is the sum over the ranks."""
        states = named.pop("hidden_states") if "hidden_states" in named else inputs[0]
        entering = states.view_as(states)
        if entering.requires_grad:
            entering.register_hook(self.total)
        return (entering, *inputs[1:]), named

    def _forward(self, layer: Any, axis: int, states: torch.Tensor) -> torch.Tensor:
        """PEFT's forward of a LoRA over a matrix of which this rank has a part of an axis."""
        result = layer.base_layer(states)
        is_cast = torch.is_autocast_enabled(states.device.type)
        active = [] if layer.disable_adapters else layer.active_adapters
        for name in filter(layer.lora_A.__contains__, active):
            into, out = layer.lora_A[name].weight, layer.lora_B[name].weight
            if axis == 0:
                out = out.chunk(self.count, 0)[self.rank]
            else:
                into = into.chunk(self.count, 1)[self.rank]
            given = states if is_cast else states.to(into.dtype)
            added = linear(linear(layer.lora_dropout[name](given), into), out)
            result = result + (added * layer.scaling[name]).to(result.dtype)
        return result if axis == 0 else self.total(result)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks; each one's gradient is that of the sum."""
        found = values.clone(memory_format=torch.contiguous_format)  # memory may run out here
        agree(self.peers)
        self.peers.add_up(found.detach())
        return found


def keep_part(module: torch.nn.Linear, rank: int, count: int, axis: int) -> None:
    """Leaves a linear layer this rank's rows (axis 0) or columns (1), and of a bias by columns,
    which is added once, the first rank's. Its sizes stay those of the whole, by which PEFT makes a
    LoRA."""
    state = getattr(module.weight, "quant_state", None)
    if state is None:
        module.weight.data = module.weight.data.chunk(count, axis)[rank].contiguous()
    else:
        keep_blocks(module, state, rank, count, axis)
    if module.bias is not None and axis == 0:
        module.bias.data = module.bias.data.chunk(count)[rank].contiguous()
    elif rank:
        module.bias = None  # type: ignore[assignment]


def keep_blocks(module: Any, state: Any, rank: int, count: int, axis: int) -> None:
    """`keep_part` of packed weights and their scales."""
    from bitsandbytes.functional import QuantState, dequantize_blockwise

    rows, columns = state.shape
    scales = state.absmax
    if state.nested:
        scales = dequantize_blockwise(scales, state.state2) + state.offset
    blocks = (rows, columns // BLOCK)
    packed = module.weight.data.view(*blocks, BLOCK // 2).chunk(count, axis)[rank]
    scales = scales.float().view(blocks).chunk(count, axis)[rank]
    module.weight.data = packed.contiguous().view(-1, 1)
    module.weight.quant_state = module.quant_state = QuantState(
        absmax=scales.contiguous().flatten(),
        shape=torch.Size((scales.shape[0], scales.shape[1] * BLOCK)),
        code=state.code,
        blocksize=BLOCK,
        quant_type=state.quant_type,
        dtype=state.dtype,
    )

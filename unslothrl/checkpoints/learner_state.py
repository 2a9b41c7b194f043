"""What a learner saves: named values as bytes, and a torch optimiser's state as named values.

A value of a parameter's state is named `index/key`, where `index` counts the parameters.
Restoring lets the optimiser build its state by itself and copies the saved values into it:
`load_state_dict` would put new tensors in the place of its buffers, in the parameter's dtype and,
for bitsandbytes' paged ones, outside of managed memory (0.50.2, `optim/optimizer.py`).
"""

import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch

OPTIMIZER = "optimizer/"  # the names of the optimisers' part begin with it
PLAIN = "plain"  # the entry of a file's metadata that holds what is no tensor, as JSON
Trained = Mapping[str, Mapping[str, torch.nn.Parameter]]  # parameters by name, by optimiser


def save(trained: Trained, optimizers: Mapping[str, torch.optim.Optimizer]) -> bytes:
    """What is trained, in full precision, and the optimisers' states."""
    values: dict[str, Any] = {}
    for kind, parameters in trained.items():
        for name, parameter in parameters.items():
            values[f"{kind}/{name}"] = parameter.detach()
        for name, value in leaves(optimizers[kind]).items():
            values[f"{OPTIMIZER}{kind}/{name}"] = value
    return pack(values)


def load(trained: Trained, optimizers: Mapping[str, torch.optim.Optimizer], data: bytes) -> None:
    """Makes parameters and optimisers what `save` was given.

    ValueError if the parameters or the optimisers are others; the parameters are then as they were.
    """
    values = unpack(data)
    expected = {f"{kind}/{name}": p.shape for kind in trained for name, p in trained[kind].items()}
    weights = {name: v for name, v in values.items() if not name.startswith(OPTIMIZER)}
    if expected != {name: getattr(value, "shape", None) for name, value in weights.items()}:
        raise ValueError(
            "the checkpoint holds a different LoRA than this run: set max_lora_rank in config.toml "
            "as it was"
        )
    for kind, optimizer in optimizers.items():
        prefix = f"{OPTIMIZER}{kind}/"
        state = {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}
        restore(optimizer, state)
    with torch.no_grad():  # last: building an optimiser's state may touch the parameters
        for kind, parameters in trained.items():
            for name, parameter in parameters.items():
                parameter.copy_(weights[f"{kind}/{name}"])


def pack(values: dict[str, Any]) -> bytes:
    """Tensors as safetensors, everything else as JSON in their metadata."""
    tensors = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    }
    plain = {name: value for name, value in values.items() if name not in tensors}
    return safetensors.torch.save(tensors, {PLAIN: json.dumps(plain)})


def unpack(data: bytes) -> dict[str, Any]:
    """What `pack` was given, on the host."""
    size = int.from_bytes(data[:8], "little")
    plain = json.loads(data[8 : 8 + size])["__metadata__"][PLAIN]
    return {**safetensors.torch.load(data), **json.loads(plain)}


def leaves(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Each value of the optimiser's state by its name."""
    return {
        f"{index}/{key}": value
        for index, parameter in enumerate(_parameters(optimizer))
        for key, value in optimizer.state.get(parameter, {}).items()
    }


@torch.no_grad()
def restore(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Makes the state what `leaves` gave. Parameters may change: restore theirs afterwards.

    ValueError where the state is that of another optimiser.
    """
    indices = {name.split("/")[0] for name in saved}
    having = {str(i): p for i, p in enumerate(_parameters(optimizer)) if str(i) in indices}
    for parameter in set(optimizer.state) - set(having.values()):
        del optimizer.state[parameter]
    if missing := [each for each in having.values() if not optimizer.state.get(each)]:
        optimizer.zero_grad(set_to_none=True)
        for parameter in missing:  # a first step builds its state
            parameter.grad = torch.zeros_like(parameter)
        for group in optimizer.param_groups:
            group["lr"] = 0.0  # each of the run's steps sets its own
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    built = leaves(optimizer)
    if {n: _form(v) for n, v in built.items()} != {n: _form(v) for n, v in saved.items()}:
        raise ValueError(
            f"the checkpoint's optimiser is not this run's {type(optimizer).__name__}: resume on a "
            "machine of the kind that wrote it"
        )
    for index, parameter in having.items():
        state = optimizer.state[parameter]
        for key, value in state.items():  # tensors stay the buffers that they are
            new = saved[f"{index}/{key}"]
            state[key] = value.copy_(new) if isinstance(value, torch.Tensor) else new


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _form(value: Any) -> Any:
    """What two values of the same entry of an optimiser's state have in common."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    return float if isinstance(value, int | float) else type(value)

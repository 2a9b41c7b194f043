"""What a PeftModel holds of an adapter, compared with what was published."""

import math
from typing import Any

from peft.tuners.lora import LoraLayer

from unslothrl.weights.adapter import Adapter
from unslothrl.weights.published import Published, difference


def published_problem(
    model: Any, name: str, adapter: Adapter, active: str, *, is_copy: bool
) -> str | None:
    """What of the LoRA `name` of a PeftModel differs from `adapter` first, or where another one
    than `active` is computed with; None where nothing is wrong.

    A copy was made from what was published, and equals it cast to its own dtype. What is trained
    was published from here: cast as it was published, it equals that.
    """
    published = Published(adapter)
    tensors = dict(published.tensors)
    for path, layer in model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if problem := _state_problem(path, layer, name, published.scaling):
            return problem
        if list(layer.active_adapters) != [active]:
            return f"{path} computes with the LoRA {', '.join(layer.active_adapters) or 'of none'}"
        for kind in ("lora_A", "lora_B"):
            expected = tensors.pop(f"{path}.{kind}.weight", None)
            if expected is None:
                return f"{path}.{kind} was not published"
            held = getattr(layer, kind)[name].weight.detach()
            if is_copy:
                expected = expected.to(held.dtype)
            else:
                held = held.to(expected.dtype)
            if problem := difference(f"{path}.{kind}", held, expected):
                return problem
    if tensors:
        return f"the model has no LoRA for {min(tensors)} and {len(tensors) - 1} others"
    return None


def _state_problem(path: str, layer: Any, name: str, scaling: float) -> str | None:
    """What else decides whether a layer computes with the LoRA `name`."""
    if name not in layer.lora_A:
        return f"{path} has no LoRA {name}"
    if not math.isclose(layer.scaling[name], scaling, rel_tol=1e-9):
        return f"{path} is scaled by {layer.scaling[name]:g}, published with alpha / r {scaling:g}"
    if layer.merged:
        return f"{path} is merged into the base"
    if layer.disable_adapters:
        return f"{path} has its LoRA switched off"
    return None

"""Which models vLLM can split over several GPUs of a node (`--actor_tensor_parallel`).

vLLM refuses to split a checkpoint that bitsandbytes has quantised
(model_loader/bitsandbytes_loader.py, `_verify_model_compatibility`). A 16-bit checkpoint it
quantises as it loads: each GPU its own part, in blocks of 64 values of a row. Where no block is
cut, the parts have the 4-bit values of the learner's base.
"""

import re

from unslothrl.config.options import Config
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.weights.shapes import VOCABULARY_PADDING, Shape, config_of, shape_of

BLOCK = 64  # values of a row that NF4 scales together
QUANTISED_NAME = re.compile(r"(-unsloth)?-bnb-4bit$|(-bnb)?-4bit$", re.IGNORECASE)


def check_model(config: Config) -> None:
    """UserError where vLLM cannot split the model, as far as its name and files say."""
    gpus = config.actor_tensor_parallel
    if gpus == 1:
        return
    settings = config_of(config.model)
    by_name = QUANTISED_NAME.search(config.model) is not None
    if by_name if settings is None else settings.get("quantization_config"):
        source = QUANTISED_NAME.sub("", config.model)
        such_as = "" if source in (config.model, EMBEDDED) else f", such as {source}"
        raise UserError(
            f"actor_tensor_parallel {gpus}: vLLM does not split a model that is quantised already, "
            f"as {config.model} is: set --model to its 16-bit source{such_as}, which every GPU "
            "quantises as it loads"
        )
    shape = shape_of(config.model)
    reason = None if shape is None else problem(shape, gpus)
    if shape is not None and reason is not None:
        fewer = max(count for count in range(1, gpus) if problem(shape, count) is None)
        remedy = f"set --actor_tensor_parallel {fewer}" if fewer > 1 else "leave it out"
        raise UserError(
            f"actor_tensor_parallel {gpus}: {gpus} GPUs cannot share the {reason} of model "
            f"{config.model}: {remedy}"
        )


def problem(shape: Shape, gpus: int) -> str | None:
    """What of a model cannot be divided by so many GPUs, None where all can.

    By vLLM's own checks (config/model.py, `verify_with_parallel_config`; `divide` in
    model_executor/layers), its bitsandbytes loader, which cannot repeat heads of keys, and NF4's
    blocks.
    """
    if gpus == 1:
        return None
    vocabulary = -(-shape.vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
    blocks = f"in whole blocks of {BLOCK}"
    parts = {  # what is divided -> its size, and what its part is a multiple of
        f"{shape.heads} attention heads": (shape.heads, 1),
        f"{shape.kv_heads} heads of keys and values": (shape.kv_heads, 1),
        f"MLP's width of {shape.inner}": (shape.inner, 1),
        f"vocabulary of {vocabulary} (padded)": (vocabulary, 1),
        f"attention's width of {shape.query} {blocks}": (shape.query, BLOCK),
        f"MLP's width of {shape.inner} {blocks}": (shape.inner, BLOCK),
        f"keys' width of {shape.key} {blocks}": (shape.key * shape.hidden, BLOCK),
    }
    return next((name for name, (size, of) in parts.items() if size % (gpus * of)), None)

"""Which models can be divided over several GPUs, and the ways to divide the work of one learner and
of an actor's engine.

`--actor_tensor_parallel`: vLLM refuses to split a checkpoint that bitsandbytes has quantised
(model_loader/bitsandbytes_loader.py, `_verify_model_compatibility`). A 16-bit checkpoint it
quantises as it loads: each GPU its own part, in blocks of 64 values of a row. Where no block is
cut, the parts have the 4-bit values of the learner's base.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from unslothrl.config.options import Config
from unslothrl.embedded import BASES
from unslothrl.errors import UserError
from unslothrl.weights.shapes import COUNTED, VOCABULARY_PADDING, Shape, config_of, shape_of

OTHER_LAYERS = f"layers, other than those of {', '.join(COUNTED)},"
RECURRENT = "recurrent layers"
BLOCK = 64  # values of a row that NF4 scales together
QUANTISED_NAME = re.compile(r"(-unsloth)?-bnb-4bit$|(-bnb)?-4bit$", re.IGNORECASE)


def check_model(config: Config) -> None:
    """UserError where the model cannot be divided so, as far as its name and files say."""
    if config.actor_tensor_parallel > 1:
        check_format(config)
    if (shape := shape_of(config.model)) is None:
        return
    for option, problem_of in PROBLEMS.items():
        count: int = getattr(config, option)
        if (reason := problem_of(shape, count)) is None:
            continue
        fewer = max(fewer for fewer in range(1, count) if problem_of(shape, fewer) is None)
        remedy = f"set --{option} {fewer}" if fewer > 1 else "leave it out"
        raise UserError(
            f"{option} {count}: {count} GPUs cannot share the {reason} of model {config.model}: "
            f"{remedy}"
        )


def check_format(config: Config) -> None:
    """UserError where vLLM cannot quantise the model as it loads."""
    gpus, settings = config.actor_tensor_parallel, config_of(config.model)
    if settings is not None and "text_config" in settings:
        raise UserError(
            f"actor_tensor_parallel {gpus}: of model {config.model}, which takes images as well, "
            "each GPU would quantise all: set --actor_pipeline_parallel instead"
        )
    by_name = QUANTISED_NAME.search(config.model) is not None
    if by_name if settings is None else settings.get("quantization_config"):
        source = QUANTISED_NAME.sub("", config.model)
        such_as = "" if source in (config.model, *BASES) else f", such as {source}"
        raise UserError(
            f"actor_tensor_parallel {gpus}: vLLM does not split a model that is quantised already, "
            f"as {config.model} is: set --model to its 16-bit source{such_as}, which every GPU "
            "quantises as it loads"
        )


def problem(shape: Shape, gpus: int) -> str | None:
    """What of a model vLLM cannot divide by so many GPUs, None where all can.

    By vLLM's own checks (config/model.py, `verify_with_parallel_config`; `divide` in
    model_executor/layers), its bitsandbytes loader, which cannot repeat heads of keys, and NF4's
    blocks.
    """
    vocabulary = -(-shape.vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
    cut = f"vocabulary of {vocabulary} (padded)" if vocabulary % gpus else None
    return of_matrices(shape, gpus) or cut


def of_matrices(shape: Shape, gpus: int) -> str | None:
    """The same of a learner, whose tables are whole."""
    if gpus == 1:
        return None
    if shape.own is not None:
        return OTHER_LAYERS
    blocks = f"in whole blocks of {BLOCK}"
    parts = {  # what is divided -> its size, and what its part is a multiple of
        f"{shape.heads} attention heads": (shape.heads, 1),
        f"{shape.kv_heads} heads of keys and values": (shape.kv_heads, 1),
        f"MLP's width of {shape.inner}": (shape.inner, 1),
        f"attention's width of {shape.query} {blocks}": (shape.query, BLOCK),
        f"MLP's width of {shape.inner} {blocks}": (shape.inner, BLOCK),
        f"keys' width of {shape.key} {blocks}": (shape.key * shape.hidden, BLOCK),
    }
    return next((name for name, (size, of) in parts.items() if size % (gpus * of)), None)


def of_heads(shape: Shape, gpus: int) -> str | None:
    """What cannot be dealt to learners that share a row, which repeat heads of keys."""
    if gpus > 1 and shape.is_recurrent:
        return RECURRENT
    if shape.heads % gpus:
        return f"{shape.heads} attention heads"
    can_repeat = gpus % shape.kv_heads == 0
    return None if shape.kv_heads % gpus == 0 or can_repeat else f"{shape.kv_heads} heads of keys"


def of_layers(shape: Shape, gpus: int) -> str | None:
    if gpus > 1 and shape.is_recurrent:  # whose class vLLM's other processes may not have
        return RECURRENT
    return f"{shape.layers} layers" if gpus > shape.layers else None


def of_stages(shape: Shape, gpus: int) -> str | None:
    """The same of a learner."""
    return OTHER_LAYERS if gpus > 1 and shape.own is not None else of_layers(shape, gpus)


PROBLEMS: dict[str, Callable[[Shape, int], str | None]] = {
    "actor_tensor_parallel": problem,
    "actor_pipeline_parallel": of_layers,
    "learner_tensor_parallel": of_matrices,
    "context_parallel": of_heads,
    "pipeline_stages": of_stages,
}


def ways(gpus: int) -> Iterator[dict[str, Any]]:
    """Options by which so many GPUs of one machine can hold a run that is too large for one: a base
    that is shared, rows that are split, or both, by some or all of them; and stages of actors on
    the others, or in turns with the learners."""
    for learners in sorted({2, 4, 8, gpus} & set(range(2, gpus + 1))):
        left = gpus - learners or gpus
        for stages in (1, 2, 4, 8):
            for shards, context in ((learners, 1), (1, learners), (learners, learners)):
                if stages <= left:
                    yield {
                        "learner_shards": shards,
                        "context_parallel": context,
                        "number_of_learners": learners,
                        "learner_chunk_size": 0,
                        "actor_pipeline_parallel": stages,
                        "number_of_actors": left // stages,
                    }

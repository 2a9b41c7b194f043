"""A base with a LoRA on it, as PEFT or Unsloth has loaded it.

Unsloth itself is not imported here: whether its code runs is told by where a decoder's function
comes from.
"""

from typing import Any

from unslothrl.errors import RunError

KINDS = ("llama", "mistral", "qwen2", "qwen3")  # model_type; their decoders take packed_seq_lengths


def check_patches(model: Any) -> None:
    """RunError where a PeftModel of one of `KINDS` does not run Unsloth's code, which knows packs:
    transformers' decoder would take their sequences for one."""
    if model.config.model_type in KINDS and not is_unsloths(model.get_base_model()):
        raise RunError(
            "Unsloth's patches are not in force: transformers or peft was imported before Unsloth, "
            "or their versions do not fit (unslothrl doctor): set --backend peft"
        )


def is_unsloths(model: Any) -> bool:
    """Whether the decoder of a causal model is Unsloth's own, not one of transformers."""
    return type(model.model).forward.__module__.startswith("unsloth.")

"""What a config means on a card, and to vLLM."""

from unslothrl.config.options import MOST_RANK, Config

FIRST_WITH_BFLOAT16 = (8, 0)  # compute capability of a card, (major, minor)
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, MOST_RANK)  # what vLLM takes as max_lora_rank


def dtype_on(config: Config, capability: tuple[int, int] | None) -> str:
    """What the models compute in on a card of that compute capability; None: on a CPU."""
    return half_precision(capability) if config.dtype == "auto" else config.dtype


def half_precision(capability: tuple[int, int] | None) -> str:
    """The 16-bit type of a card: bfloat16 where it has it, as every CPU does. -> its name."""
    is_old = capability is not None and capability < FIRST_WITH_BFLOAT16
    return "float16" if is_old else "bfloat16"


def vllm_rank(rank: int) -> int:
    """The LoRA rank that vLLM reserves memory for where adapters have `rank`."""
    return next(allowed for allowed in VLLM_RANKS if allowed >= rank)

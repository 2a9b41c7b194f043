"""What a config means on a card, to vLLM, and to whoever draws completions."""

from unslothrl.config.options import MOST_RANK, Config
from unslothrl.records import Sampling

FIRST_WITH_BFLOAT16 = (8, 0)  # compute capability of a card, (major, minor)
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, MOST_RANK)  # what vLLM takes as max_lora_rank


def dtype_on(config: Config, capability: tuple[int, int] | None) -> str:
    """What the models compute in on a card of that compute capability; None: on a CPU."""
    return half_precision(capability) if config.dtype == "auto" else config.dtype


def half_precision(capability: tuple[int, int] | None) -> str:
    """The 16-bit type of a card: bfloat16 where it has it, as every CPU does. -> its name."""
    is_old = capability is not None and capability < FIRST_WITH_BFLOAT16
    return "float16" if is_old else "bfloat16"


def follows_newest(config: Config) -> bool:
    """Whether completions in flight go on under a version that is loaded meanwhile."""
    return config.partial_rollouts and config.max_staleness > 0


def versions_in_flight(config: Config) -> int:
    """Policy versions that an engine may draw under at a time: those of late rollouts too."""
    return 1 if follows_newest(config) else config.max_staleness + 1


def vllm_rank(rank: int) -> int:
    """The LoRA rank that vLLM reserves memory for where adapters have `rank`."""
    return next(allowed for allowed in VLLM_RANKS if allowed >= rank)


def training_sampling(config: Config) -> Sampling:
    """How what is trained on is drawn."""
    top_k, tokens = config.sampling_top_k, config.episode_tokens
    return Sampling(config.temperature, config.top_p, top_k, config.max_new_tokens, tokens)


def evaluation_sampling(config: Config) -> Sampling:
    temperature, top_p = config.eval_temperature, config.eval_top_p
    return Sampling(temperature, top_p, 0, config.max_new_tokens, config.episode_tokens)

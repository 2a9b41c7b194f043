"""How completions are drawn: to train on, and in an evaluation."""

from unslothrl.config.options import Config
from unslothrl.records import Sampling


def training(config: Config) -> Sampling:
    return Sampling(
        config.temperature,
        config.top_p,
        config.sampling_top_k,
        config.max_new_tokens,
        config.episode_tokens,
    )


def evaluation(config: Config) -> Sampling:
    return Sampling(
        config.eval_temperature,
        config.eval_top_p,
        0,
        config.max_new_tokens,
        config.episode_tokens,
    )

"""Settings that fit: the longest, the fastest, or what was asked for, lowered until it does."""

import bisect
import itertools
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

from unslothrl.config.options import DEFAULT_NUM_SEQS, Config
from unslothrl.planning.footprint import LEAST_SEQS

LEAST_NEW_TOKENS = 256
STEP = 64  # tokens that a length is searched by
LONGEST = 131_072  # tokens, of a model whose context is not known
POWERS_OF_2 = (DEFAULT_NUM_SEQS, 128, 64, 32, 16, 8, 4, 2, 1)
FREE = frozenset(
    {"max_num_seqs", "train_batch_size", "num_candidates", "max_new_tokens", "max_episode_tokens"}
)  # what a search may change


def kept(tried: Config, config: Config, given: Set[str]) -> Config:
    """`tried` with what was given as `config` has it."""
    names = (FREE & given) | ({config.length_option} if has_length(config, given) else set())
    return replace(tried, **{name: getattr(config, name) for name in names})


def has_length(config: Config, given: Set[str]) -> bool:
    """Whether the length of an episode was given, by its own option or as that of a turn."""
    if config.length_option in given:
        return True
    return config.max_episode_tokens is None and "max_new_tokens" in given


def with_length(config: Config, tokens: int) -> Config:
    changed: dict[str, Any] = {config.length_option: tokens}
    return replace(config, **changed)


def lower(config: Config, given: Set[str], excess: Callable[[Config], float]) -> Config:
    """Lowered until `excess(config)`, MB too many, is at most 0, or as far as it goes."""

    def greedily(config: Config, *floors: tuple[str, int]) -> Config:
        """Halves, again and again, whichever option saves most, down to its floor."""
        while excess(config) > 0:
            steps = [_halved(config, *floor) for floor in floors if floor[0] not in given]
            best = min(steps, key=excess, default=config)
            if excess(best) >= excess(config):
                break
            config = best
        return config

    candidates = config.num_candidates
    config = greedily(config, ("max_num_seqs", candidates), ("train_batch_size", 1))
    config = greedily(config, ("max_num_seqs", LEAST_SEQS), ("train_batch_size", 1))
    seqs = config.sequences_at_once
    if "num_candidates" not in given and seqs < candidates:
        # A group's candidates are still generated together, and a step takes no longer.
        least = max(2, config.topk) if "topk" in given else 2
        config = replace(config, num_candidates=max(least, seqs))
    if not has_length(config, given):
        while excess(config) > 0 and config.episode_tokens - 100 >= LEAST_NEW_TOKENS:
            config = with_length(config, config.episode_tokens - 100)
    return greedily(config, ("max_num_seqs", 1))


def _halved(config: Config, name: str, floor: int) -> Config:
    value = getattr(config, name) or DEFAULT_NUM_SEQS
    changed: dict[str, Any] = {name: max(floor, value // 2)}
    return replace(config, **changed) if value > floor else config


def largest(config: Config, fits: Callable[[Config], bool], limit: int | None) -> Config | None:
    """The longest completion or episode that fits, one sequence a micro-batch and `LEAST_SEQS`
    generated at once; `limit` is the model's context. None where not even 64 tokens fit."""
    small = replace(config, train_batch_size=1, max_num_seqs=LEAST_SEQS)
    most = (limit or LONGEST) - config.max_prompt_tokens
    tokens = longest_that_fits(most, lambda tokens: fits(with_length(small, tokens)))
    return with_length(small, tokens) if tokens else None


def longest_that_fits(most: int, fits: Callable[[int], bool]) -> int:
    """The largest of `STEP`, 2 `STEP` ... `most` tokens that fits; 0 where none does."""
    counts = range(1, most // STEP + 1)
    return STEP * bisect.bisect(counts, False, key=lambda count: not fits(STEP * count))


def fastest(
    config: Config, fits: Callable[[Config], bool], limit: int | None = None
) -> Config | None:
    """The most sequences at once, then the largest micro-batch, that fit at the given lengths."""
    for seqs, rows in itertools.product(POWERS_OF_2, POWERS_OF_2[2:]):
        tried = replace(config, max_num_seqs=seqs, train_batch_size=rows)
        if fits(tried):
            return tried
    return None

"""Settings that fit: the longest, the fastest, or what was asked for, lowered until it does."""

from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from typing import Any

from unslothrl.config.options import DEFAULT_NUM_SEQS, Config
from unslothrl.planning.footprint import LEAST_SEQS

LEAST_NEW_TOKENS = 256
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
    """With so many tokens after a prompt."""
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
    most = (limit or 131_072) - config.max_prompt_tokens
    count = most_that_fit(most // 64, lambda count: fits(with_length(small, 64 * count)))
    return with_length(small, 64 * count) if count else None


def most_that_fit(most: int, fits: Callable[[int], bool]) -> int:
    """The largest of 1 ... `most` that fits, by halves; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def fastest(
    config: Config, fits: Callable[[Config], bool], limit: int | None = None
) -> Config | None:
    """The most sequences at once, then the largest micro-batch, that fit at the given lengths."""
    for seqs in _powers(DEFAULT_NUM_SEQS):
        for micro_batch in _powers(64):
            tried = replace(config, max_num_seqs=seqs, train_batch_size=micro_batch)
            if fits(tried):
                return tried
    return None


def _powers(most: int) -> Iterator[int]:
    """`most`, its half, ..., 1."""
    while most:
        yield most
        most //= 2

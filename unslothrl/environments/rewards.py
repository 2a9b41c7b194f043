"""How the rewards of an episode's turns are made one: [turns] rewards, discount -> a number."""

from collections.abc import Callable, Mapping, Sequence


def total(rewards: Sequence[float], discount: float) -> float:
    return float(sum(rewards))


def last(rewards: Sequence[float], discount: float) -> float:
    return float(rewards[-1]) if rewards else 0.0


def discounted(rewards: Sequence[float], discount: float) -> float:
    """sum over turns t = 0, 1, ... of discount^t reward_t."""
    return float(sum(discount**turn * reward for turn, reward in enumerate(rewards)))


TURN_REWARDS: Mapping[str, Callable[[Sequence[float], float], float]] = {
    "sum": total,
    "last": last,
    "discounted": discounted,
}

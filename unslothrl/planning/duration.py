"""Whether a run could ever end: the least time that its completions take.

Optimistic on purpose: every generator draws `RATE` tokens a second, which a card reaches with the
smallest models alone, completions are a tenth as long as they may be, and nothing else takes time.
A run that still takes over `MOST_YEARS` is refused, one of over `LONG_DAYS` days says so.
"""

from unslothrl.config.options import Config
from unslothrl.errors import UserError

RATE = 100_000  # tokens a second of one generator
SHARE = 0.1  # of max_new_tokens that a completion is long
MOST_YEARS = 10
LONG_DAYS = 30
DAY = 86_400
YEAR = 365.25 * DAY


def least_seconds(config: Config, steps: int, eval_problems: int) -> float:
    """Seconds that a run takes at the least; `eval_problems` are those of all sets together."""
    completions = steps * config.completions_per_step
    if config.eval_every:
        evaluations = 1 + -(-steps // config.eval_every)
        completions += evaluations * eval_problems * config.eval_candidates
    tokens = completions * max(1.0, SHARE * longest(config))
    return tokens / (RATE * config.number_of_processes)


def longest(config: Config) -> int:
    """Tokens of a completion; of an episode those of its first turn, which may be the only one."""
    return min(config.max_new_tokens, config.episode_tokens)


def ends_early(max_steps: int | None, steps: int, episodes: int) -> list[str]:
    """A line where the data end before --max_steps."""
    if not max_steps or steps >= max_steps:
        return []
    passes = f"{episodes} pass{'es' * (episodes != 1)}"
    return [
        f"max_steps {max_steps} -> {steps}: the data end after {passes} (--episodes): set "
        f"--episodes {-(-max_steps * episodes // steps)} for {max_steps} steps"
    ]


def check(config: Config, steps: int, eval_problems: int) -> list[str]:
    """-> a line where a run takes very long. UserError where it cannot end."""
    seconds = least_seconds(config, steps, eval_problems)
    if seconds < LONG_DAYS * DAY:
        return []
    what = (
        f"{steps:,} steps of {config.batch_size:,} x {config.num_candidates:,} completions of up "
        f"to {longest(config):,} tokens"
    )
    remedy = "set --max_steps, --batch_size, --num_candidates or --max_new_tokens lower"
    if seconds > MOST_YEARS * YEAR:
        raise UserError(f"{what} take over {seconds / YEAR:,.0f} years at the least: {remedy}")
    return [f"warning: {what} take {seconds / DAY:,.0f} days at the least"]

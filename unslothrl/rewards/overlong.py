"""Soft overlong punishment, DAPO, arXiv 2503.14476, equation 13.

    0                                     length <= limit - cache
    (limit - cache - length) / cache      up to the limit
    -1                                    at the limit, where a completion is cut off

Falls in equal steps from 0 to -1 and nowhere rises, so a shorter completion is never punished more.
"""

from dataclasses import dataclass

NAME = "overlong"


@dataclass(frozen=True)
class Overlong:
    """Both in tokens, 0 < cache <= limit."""

    limit: int  # the longest completion
    cache: int  # how long before the limit the punishment begins

    def __call__(self, length: int) -> float:
        """Length of a completion in tokens -> its reward, -1 to 0."""
        free = self.limit - self.cache
        return max(-1.0, min(0.0, (free - length) / self.cache))

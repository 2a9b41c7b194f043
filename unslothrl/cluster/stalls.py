"""When the driver itself was stopped, by Ctrl-Z or with its container, nobody else was late."""

import time
from collections.abc import Callable

STALL_S = 5.0  # between two looks that follow one another within a second


class Stalls:
    """Of whoever looks at other processes again and again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock, self.looked = clock, clock()

    def look(self) -> float:
        """-> the seconds for which nobody looked, 0 unless that was far too long. What others were
        given by a clock has to be put off by as much."""
        now = self.clock()
        passed, self.looked = now - self.looked, now
        return passed if passed > STALL_S else 0.0

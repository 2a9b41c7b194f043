"""How long learners may take for a piece of work: by its size, and by how long they have taken."""

from collections import deque

FIRST_S = 900.0  # to compile, to load kernels, to fill caches
FIRST_RATE = (
    20.0  # costs a second (see `balancing.Costs`) of the slowest machine that is trained on
)
SLACK_S = (
    60.0  # of every deadline: work that is small, and a machine that is busy with other things
)
FACTOR = 5.0  # over the slowest pace seen
KEPT = (
    8  # pieces of work that are remembered: the first, with what was compiled in it, is forgotten
)


class Pace:
    """Of one kind of work. A piece has the cost of the largest share: the others wait for it."""

    def __init__(self) -> None:
        self.seen: deque[float] = deque(maxlen=KEPT)  # seconds for each unit of cost

    def deadline_s(self, cost: float) -> float:
        """After so many seconds whoever is not done is taken to hang."""
        if not self.seen:
            return FIRST_S + cost / FIRST_RATE
        return SLACK_S + FACTOR * max(self.seen) * cost

    def saw(self, cost: float, seconds: float) -> None:
        """Counts a piece of work that was done."""
        if cost > 0:
            self.seen.append(seconds / cost)

"""One completion, and the episode is over: problems whose answer can be checked."""

from unslothrl.environments.base import Step
from unslothrl.types import Task


class SingleTurn:
    """Says nothing; the rewards judge the completion."""

    max_turns = 1

    def reset(self, task: Task, seed: int) -> None:
        """There is no state."""

    async def step(self, action: str) -> Step:
        return Step()


ENVIRONMENT = SingleTurn

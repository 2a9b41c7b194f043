"""Procedural tasks of reasoning-gym.

    --environment examples/reasoning_gym.py:ReasoningGym
    --environment_options dataset=basic_arithmetic

Other options are passed on to `create_dataset`. The task's own problem is not asked: each group has
a task of its own, by its seed.
"""

from typing import Any

import reasoning_gym
from reasoning_gym.utils import extract_answer


class ReasoningGym:
    """One turn: the answer between <answer> and </answer> or, without these, all that is said."""

    max_turns = 1

    def __init__(self, dataset: str, **options: Any):
        self.dataset, self.options = dataset, options

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        seed = (seed or 0) % 2**32
        self.made = reasoning_gym.create_dataset(self.dataset, seed=seed, size=1, **self.options)
        self.task = self.made[0]
        return self.task["question"], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        answer = extract_answer(action)
        answer = action.strip() if answer is None else answer
        reward = float(self.made.score_answer(answer=answer, entry=self.task))
        return "", reward, True, False, {"score": float(reward >= 1)}

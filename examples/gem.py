"""A GEM environment.

    --environment examples/gem.py:Gem --environment_options env_id=game:GuessTheNumber-v0-easy

Other options are passed on to `gem.make`. GEM pins packages that conflict with ours: install it
into an environment of its own and name its Python, `--environment_python`.
"""

from typing import Any

from gem import make


class Gem:
    """In Gymnasium's form, which is GEM's."""

    def __init__(self, env_id: str, **options: Any):
        self.game = make(env_id, **options)

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        return self.game.reset(seed=seed % 2**32 if seed is not None else None)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self.game.step(action)

"""A TextArena game of one player.

    --environment examples/textarena.py:TextArena --environment_options env_id=GuessTheNumber-v0

Other options are passed on to `textarena.make`.

The game is made without its usual wrappers, which repeat all that was said before: a policy has
that before its eyes.
"""

from typing import Any

from textarena import make

RAW = "-raw"  # TextArena's name for a game without wrappers


class TextArena:
    """What the game says since the last turn is the observation; its reward comes at the end."""

    def __init__(self, env_id: str, **options: Any):
        self.game = make(env_id.removesuffix(RAW) + RAW, **options)

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.game.reset(num_players=1, seed=seed % 2**32 if seed is not None else None)
        return self.observation(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        is_over, _ = self.game.step(action=action)
        if not is_over:
            return self.observation(), 0.0, False, False, {}
        rewards, _ = self.game.close()
        reward = float(rewards.get(0, 0.0))
        return "", reward, True, False, {"score": float(reward >= 1)}

    def observation(self) -> str:
        player, said = self.game.get_observation()
        return "\n".join(text for speaker, text, _ in said if speaker != player)

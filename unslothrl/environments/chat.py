"""The tokens that stand between two turns of the policy, by the model's own chat template."""

from collections.abc import Sequence

from unslothrl.environments.base import Message
from unslothrl.errors import UserError

PLACEHOLDER = "PLACEHOLDEROFTHEREPLY"


class Chat:
    """Reads replies and writes observations. What was sampled is never tokenised again."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        return self.tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def observation_ids(
        self, reply_ids: Sequence[int], observation: str | Sequence[Message]
    ) -> tuple[int, ...]:
        """What follows a reply: the end of its turn unless it was sampled, the observation, and the
        beginning of the policy's next turn.

        The template writes a conversation with a placeholder in the reply's place, and what it
        writes after that is tokenised; earlier turns stay as they are even where the template
        would rewrite them. UserError where it refuses, or writes the reply not exactly once.
        """
        turns = (
            [{"role": "user", "content": observation}]
            if isinstance(observation, str)
            else list(observation)
        )
        conversation = [
            {"role": "user", "content": "-"},
            {"role": "assistant", "content": PLACEHOLDER},
            *turns,
        ]
        try:
            text = self.tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # whatever a template raises: it is a program
            roles, reason = ", ".join(turn["role"] for turn in turns), " ".join(str(error).split())
            raise UserError(
                f"model: its chat template refuses turns of {roles} after a reply "
                f"({reason:.200}): choose another model or environment"
            ) from None
        if text.count(PLACEHOLDER) != 1:
            raise UserError(
                "model: its chat template does not write a reply as it is, so that turns cannot "
                "follow it: choose another model, or --environment single_turn"
            )
        rest = text.partition(PLACEHOLDER)[2]
        (ids,) = self.tokenizer([rest], add_special_tokens=False)["input_ids"]
        if reply_ids and ids[:1] == [reply_ids[-1]]:
            ids = ids[1:]
        return tuple(ids)

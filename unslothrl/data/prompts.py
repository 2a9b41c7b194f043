"""From a conversation to the token ids that the model reads."""

from collections.abc import Sequence

from unslothrl.data import templating


def turns_of(
    messages: Sequence[tuple[str, str]] | str, system_prompt: str, replaces: bool = False
) -> list[tuple[str, str]]:
    """(role, content) of each turn. A text is one turn of the user. The conversation's own system
    turn stays unless `system_prompt` `replaces` it. An empty one leaves the system turn out."""
    turns = [("user", messages)] if isinstance(messages, str) else list(messages)
    if turns[0][0] == "system" and replaces:
        del turns[0]
    if system_prompt and turns[0][0] != "system":
        turns.insert(0, ("system", system_prompt))
    return turns


def render(
    tokenizer,
    messages: Sequence[tuple[str, str]] | str,
    system_prompt: str,
    replaces: bool = False,
) -> str:
    """The chat template's text of `turns_of` up to where the assistant begins to write. UserError
    where the template refuses."""
    turns = turns_of(messages, system_prompt, replaces)
    conversation = [{"role": role, "content": content} for role, content in turns]
    advice = 'set --system_prompt "", or choose another model'
    return templating.render(tokenizer, conversation, advice, add_generation_prompt=True)


def tokenise(tokenizer, prompts: list[str]) -> list[list[int]]:
    """Token ids of rendered prompts; the template has written the special tokens already."""
    if not prompts:
        return []
    # Not verbose: what is too long is left out, and counted.
    return tokenizer(prompts, add_special_tokens=False, verbose=False)["input_ids"]

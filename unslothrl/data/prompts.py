"""From a conversation to token ids by the tokenizer's chat template, within a time."""

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unslothrl.errors import UserError

LONGEST_S = 10.0  # for one text


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
    tokenizer, messages: Sequence[tuple[str, str]] | str, system_prompt: str, replaces: bool = False
) -> str:
    """The chat template's text of `turns_of` up to where the assistant begins. UserError."""
    turns = turns_of(messages, system_prompt, replaces)
    conversation = [{"role": role, "content": content} for role, content in turns]
    advice = 'set --system_prompt "", or choose another model'
    return by_template(tokenizer, conversation, advice, add_generation_prompt=True)


def tokenise(tokenizer, prompts: list[str]) -> list[list[int]]:
    """Token ids of rendered prompts; the template has written the special tokens already."""
    if not prompts:
        return []
    # Not verbose: what is too long is left out, and counted.
    return tokenizer(prompts, add_special_tokens=False, verbose=False)["input_ids"]


class TakesTooLong(BaseException):  # which no part of a template catches
    def __str__(self) -> str:
        return f"it takes longer than {LONGEST_S:g} s"


def by_template(tokenizer, messages: Sequence[Mapping[str, Any]], advice: str, **options) -> str:
    """What the template writes of `messages`. UserError, which ends in `advice`, where it refuses
    them, writes nothing, or takes longer than `LONGEST_S`."""
    try:
        with within(LONGEST_S):
            text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
        if not text:
            raise ValueError("it writes nothing")
        return text
    except (Exception, TakesTooLong) as error:  # whatever a template raises
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise UserError(
            f"model: its chat template refuses a conversation of {roles:.200} "
            f"({' '.join(str(error).split()):.200}): {advice}"
        ) from None


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises TakesTooLong in the block after so many seconds, in any thread, between calls of C."""
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    where = (ctypes.c_ulong(threading.get_ident()), ctypes.py_object(TakesTooLong))
    timer = threading.Timer(seconds, raise_in, where)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # what it has raised arrives here at the latest

"""One episode's conversation, from its first prompt to the last reply."""

from collections.abc import Sequence

from unslothrl.dialogue.base import Extension, Message, Prompt, Reply, Tool
from unslothrl.dialogue.calls import as_texts, has_tools
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.errors import UserError

OBSERVED = ("user", "tool", "system")
FIRST = (*OBSERVED, "assistant")  # as in a data set: examples may come before the question


class Conversation:
    """Takes what was sampled and what an environment says in turn.

    `prompt_ids`: of the first prompt, where it is rendered already. UserError where the model's
    template refuses the messages.
    """

    def __init__(
        self,
        dialogue: TemplateDialogue,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        prompt_ids: Sequence[int] | None = None,
    ):
        self._dialogue = dialogue
        self._history = dialogue.opened(messages, tools)
        self._prompt = (
            dialogue.prompt(self._history) if prompt_ids is None else Prompt(tuple(prompt_ids))
        )
        self._reply_ids: tuple[int, ...] | None = None

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """What the policy reads before its turn: it begins with all earlier turns of a sequence."""
        return self._prompt.ids

    def reply(self, token_ids: Sequence[int]) -> Reply:
        """Takes the turn that the policy has written, whole or cut off."""
        if self._reply_ids is not None:
            raise ValueError("a reply follows a reply: add what the environment says first")
        ids = tuple(token_ids)
        history = self._history
        reply, raw, parsed = self._dialogue.read(ids, self._prompt, history)
        self._reply_ids = ids
        history.raw.append(raw)
        history.parsed.append(parsed)
        history.calls = reply.calls
        history.count += len(history.calls)
        return reply

    def add(self, messages: Sequence[Message]) -> Extension:
        """Takes what the environment says to the reply; then the policy writes its next turn.

        Results of tools name their call by `tool_call_id`; without one they are taken in the order
        of the calls. Where a result cannot be written as one, since its call cannot be read, it is
        written as a turn of the user, in <tool_response>.
        """
        if self._reply_ids is None:
            raise ValueError("nothing to answer: the policy has not written a turn")
        new = self._paired(checked(messages))
        try:
            extension, prompt = self._extended(new, self._reply_ids)
        except UserError:
            if not has_tools(new):
                raise
            extension, prompt = self._extended(as_texts(new), self._reply_ids)
        self._prompt, self._reply_ids = prompt, None
        return extension

    def _extended(self, new: list[Message], reply_ids: tuple[int, ...]) -> tuple[Extension, Prompt]:
        return self._dialogue.extended(reply_ids, new, self._prompt, self._history)

    def _paired(self, messages: list[Message]) -> list[Message]:
        """With the id and the name of the call in each result."""
        calls = {call.id: call for call in self._history.calls}
        answered = {message.get("tool_call_id") for message in messages}
        waiting = [call for call in self._history.calls if call.id not in answered]
        paired = []
        for message in messages:
            if message["role"] == "tool":
                call = calls.get(message.get("tool_call_id", ""))
                if "tool_call_id" not in message and waiting:
                    call = waiting.pop(0)
                if call is not None:
                    known = {"name": call.name} if call.name else {}
                    message = {**known, **message, "tool_call_id": call.id}
            paired.append(message)
        return paired


def checked_prompt(messages: Sequence[Message]) -> list[Message]:
    """UserError where no conversation begins with an environment's messages."""
    messages = checked(messages, FIRST)
    if messages[-1]["role"] == "assistant":
        raise UserError("environment: its prompt ends with a turn of the assistant: leave it out")
    return messages


def checked(messages: Sequence[Message], roles: Sequence[str] = OBSERVED) -> list[Message]:
    """UserError where an environment's messages are none."""
    if not messages:
        raise UserError("environment: it says nothing after a turn: return a message, or done=True")
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role not in roles:
            raise UserError(
                f"environment: a message of role {role!r}: choose one of {', '.join(roles)}"
            )
        if not isinstance(content, str):
            kind = type(content).__name__
            raise UserError(f"environment: a message whose content is of type {kind}: give a text")
    return list(messages)

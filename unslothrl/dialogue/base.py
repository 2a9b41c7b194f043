"""What passes between a conversation and the template that writes and reads its turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unslothrl.environments.base import Message, ToolCall

Tool = Mapping[str, Any]
"""{"type": "function", "function": {"name", "description", "parameters"}}, as in OpenAI's API."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A turn of the policy."""

    text: str  # all of it, special tokens left out: what rewards judge
    content: str  # without reasoning and calls
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the policy reads before its next turn."""

    ids: tuple[int, ...]
    text: str | None = None  # where it was rendered here


@dataclass(frozen=True, slots=True)
class Extension:
    """What comes between two turns of the policy."""

    ids: tuple[int, ...]  # to append after the reply or, in a new sequence, the whole prompt
    is_continuation: bool


@dataclass(slots=True)
class History:
    """The messages so far in two forms, which differ in the replies."""

    raw: list[Message]  # a reply's content is all that was written
    parsed: list[Message]  # its reasoning and its calls are fields of their own
    tools: Sequence[Tool] = ()
    calls: tuple[ToolCall, ...] = ()  # of the last reply
    count: int = 0  # of calls so far

    def extend(self, new: list[Message], said: Message | None = None) -> None:
        """With what an environment says; `said` takes the place of the last reply."""
        if said is not None:
            self.raw[-1] = said
        self.raw += new
        self.parsed += new


def as_message(reply: Reply, unparsed: str = "") -> Message:
    """A reply with its reasoning and its calls apart. Of calls that cannot be made only their text,
    `unparsed`, is left.
    """
    content = "\n".join(filter(None, (reply.content, unparsed)))
    message: Message = {"role": "assistant", "content": content}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in reply.calls
        if not call.error
    ]
    return message | ({"tool_calls": calls} if calls else {})

"""Turns by a hand-written renderer of the `renderers` package, for model families that it knows.

https://pypi.org/project/renderers: `render_ids` writes a conversation, `parse_response` reads a
reply by its token ids, `bridge_to_next_turn` appends to what was sampled, or refuses. Then all is
rendered, and a new sequence begins unless that begins with exactly what was sampled. Nothing here
goes to the network: a renderer is built from its class, by its name.
"""

from collections.abc import Sequence
from typing import Any

from unslothrl.dialogue.base import (
    Extension,
    History,
    Message,
    Prompt,
    Reading,
    Reply,
    Tool,
    ToolCall,
    as_message,
    decoded,
    encoded,
)
from unslothrl.dialogue.calls import CUT_OFF, NO_NAME, NO_OBJECT, NOT_JSON, is_sound
from unslothrl.dialogue.markers import markers_of
from unslothrl.errors import UserError

ERRORS = {
    "invalid_json": NOT_JSON,
    "unclosed_block": CUT_OFF,
    "missing_name": NO_NAME,
    "malformed_structure": "the call is not in the model's form",
    "unknown_tool": "there is no such tool",
}
# `gpt-oss` writes with openai-harmony, which downloads its vocabulary.
NOT_HAND_WRITTEN = frozenset(("auto", "default", "custom", "gpt-oss"))


class Named:
    """A tokenizer under the name by which a renderer knows its model. It has no character offsets,
    which would cost a second tokenisation of each piece of text.
    """

    def __init__(self, tokenizer, name: str):
        self.name_or_path = name
        self.unk_token_id = tokenizer.unk_token_id
        self.eos_token_id = tokenizer.eos_token_id
        self.chat_template = tokenizer.chat_template
        self._tokenizer = tokenizer
        self.decode = tokenizer.decode
        self.convert_tokens_to_ids = tokenizer.convert_tokens_to_ids

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return encoded(self._tokenizer, text)


class HandWrittenDialogue:
    """Writes and reads turns by the renderer of that name. `model`: as the package calls it."""

    def __init__(self, tokenizer, name: str, model: str = ""):
        self.tokenizer = tokenizer
        self.name = name
        self.note = f"the hand-written renderer {name}"
        self.renderer = made(Named(tokenizer, model), name)
        self.ends = frozenset(self.renderer.get_stop_token_ids())
        self.markers = markers_of(tokenizer, self.render, self.ends)

    def render(self, messages: list[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        try:
            return tuple(
                self.renderer.render_ids(
                    messages, tools=list(tools) or None, add_generation_prompt=True
                )
            )
        except Exception as error:  # of any kind: it is another package
            roles = ", ".join(str(message.get("role")) for message in messages)
            reason = " ".join(str(error).split())
            raise UserError(
                f"model: the renderer {self.name} refuses turns of {roles:.200} ({reason:.200}): "
                "choose --renderer template, or another environment"
            ) from None

    def opened(self, messages: Sequence[Message], tools: Sequence[Tool]) -> History:
        return History(list(messages), list(messages), list(tools))

    def clean(self, messages: Sequence[Message]) -> list[Message]:
        return self.markers.clean(messages)

    def prompt(self, history: History) -> Prompt:
        return Prompt(self.render(history.parsed, history.tools))

    def read(self, reply_ids: tuple[int, ...], prompt: Prompt, history: History) -> Reading:
        text = decoded(self.tokenizer, reply_ids, skip_special_tokens=True)
        try:
            parsed = self.renderer.parse_response(
                list(reply_ids), tools=list(history.tools) or None, prompt_ids=list(prompt.ids)
            )
            content, reasoning = str(parsed.content or ""), parsed.reasoning_content
            attempts = parsed.tool_calls or []
        except Exception:  # of what a policy may write, which is anything
            content, reasoning, attempts = text, None, []
        calls: list[ToolCall] = []
        unparsed: list[str] = []
        for number, attempt in enumerate(attempts, history.count):
            calls.append(call_of(attempt, f"call{number:05}"))
            if calls[-1].error:
                unparsed.append(attempt.raw)
        reply = Reply(text, content, reasoning, tuple(calls))
        message = as_message(reply, "\n".join(unparsed))
        return Reading(reply, message, message)

    def extended(
        self,
        reply_ids: tuple[int, ...],
        new: list[Message],
        prompt: Prompt,
        history: History,
    ) -> tuple[Extension, Prompt]:
        new = self.clean(new)
        if any(message["role"] == "system" for message in new):
            self.render(history.parsed + new, history.tools)  # bridges write what templates refuse
        sampled = prompt.ids + reply_ids
        ids = self._bridged(prompt.ids, reply_ids, new, history.tools)
        if ids is None or not begins(ids, sampled):
            ids = self.render(history.parsed + new, history.tools)
        history.extend(new)
        if begins(ids, sampled):  # some bridges refuse although nothing changes
            return Extension(ids[len(sampled) :], True), Prompt(ids)
        return Extension(ids, False), Prompt(ids)

    def _bridged(
        self,
        prompt_ids: tuple[int, ...],
        reply_ids: tuple[int, ...],
        new: list[Message],
        tools: Sequence[Tool],
    ) -> tuple[int, ...] | None:
        """The next prompt; None where the renderer cannot append to this one."""
        try:
            bridged = self.renderer.bridge_to_next_turn(
                list(prompt_ids), list(reply_ids), new, tools=list(tools) or None
            )
        except Exception:  # then rendering it says why
            return None
        return None if bridged is None else tuple(bridged.token_ids)


def begins(ids: tuple[int, ...], sampled: tuple[int, ...]) -> bool:
    """Whether a prompt begins with exactly what was sampled, and goes on."""
    return len(ids) > len(sampled) and ids[: len(sampled)] == sampled


def call_of(attempt: Any, number: str) -> ToolCall:
    """What the package has read of a call."""
    name = attempt.name if isinstance(attempt.name, str) else ""
    name = name if is_sound(name, {}) else ""
    identity = attempt.id if isinstance(attempt.id, str) and attempt.id else number
    if attempt.status != "ok":
        error = ERRORS.get(str(attempt.status), str(attempt.status))
        return ToolCall(name, None, error, identity)
    if not name:
        return ToolCall("", None, NO_NAME, identity)
    arguments = attempt.arguments
    if not isinstance(arguments, dict) or not is_sound(name, arguments):
        return ToolCall(name, None, NO_OBJECT, identity)
    return ToolCall(name, arguments, "", identity)


def names() -> list[str]:
    """Of all hand-written renderers."""
    from renderers.configs import _CONFIG_BY_NAME

    return sorted(_CONFIG_BY_NAME.keys() - NOT_HAND_WRITTEN)


def models() -> dict[str, str]:
    """The models that the package knows, and the names of their renderers."""
    from renderers.base import MODEL_RENDERER_MAP

    return {
        model: name for model, name in MODEL_RENDERER_MAP.items() if name not in NOT_HAND_WRITTEN
    }


def made(tokenizer: Named, name: str):
    """A renderer with its defaults. UserError where the tokenizer lacks its tokens."""
    from renderers.base import RENDERER_REGISTRY, _populate_registry
    from renderers.configs import _CONFIG_BY_NAME

    _populate_registry()
    try:
        return RENDERER_REGISTRY[name](tokenizer, _CONFIG_BY_NAME[name]())
    except Exception as error:  # of any kind: it is another package
        reason = " ".join(str(error).split())
        raise UserError(
            f"renderer {name!r} does not fit this model's tokenizer ({reason:.200}): choose "
            "--renderer template"
        ) from None

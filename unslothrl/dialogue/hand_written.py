"""Turns by a hand-written renderer of the `renderers` package, for model families that it knows;
and the choice between it and the chat template.

https://pypi.org/project/renderers: `render_ids` writes a conversation, `parse_response` reads a
reply by its token ids, `bridge_to_next_turn` appends to what was sampled, or refuses. Then all is
rendered, and a new sequence begins unless that begins with exactly what was sampled. Nothing here
goes to the network: a renderer is built from its class, by its name.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from unslothrl.dialogue.base import (
    Dialogue,
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
from unslothrl.dialogue.calls import (
    CUT_OFF,
    NAME,
    NO_NAME,
    NO_OBJECT,
    NOT_JSON,
    PROBE_TOOL,
    is_sound,
)
from unslothrl.dialogue.markers import markers_of
from unslothrl.dialogue.template import TemplateDialogue
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


AUTO, TEMPLATE = "auto", "template"
QUANTISED = re.compile(r"-(unsloth-bnb-4bit|bnb-4bit|4bit|awq|gptq(-int[48])?|fp8|bf16)$")
CALL = {"type": "function", "function": {"name": NAME, "arguments": {"zq_key_7": "1"}}}
SYSTEM: Message = {"role": "system", "content": "Be brief."}
ASKED: Message = {"role": "user", "content": "What is 2 + 3?"}
ANSWERED: Message = {"role": "assistant", "content": "It is 5."}
THOUGHT: Message = {**ANSWERED, "reasoning_content": "2 and 3 more."}
CALLED: Message = {"role": "assistant", "content": "", "tool_calls": [{"id": "call00000", **CALL}]}
RESULT: Message = {"role": "tool", "content": "5", "name": NAME, "tool_call_id": "call00000"}
PROBES: tuple[tuple[str, list[Message], list[Tool]], ...] = (
    ("a question", [ASKED], []),
    ("a system message", [SYSTEM, ASKED], []),
    ("several turns", [SYSTEM, ASKED, ANSWERED, ASKED], []),
    ("tools", [SYSTEM, ASKED], [PROBE_TOOL]),
    ("a call and its result", [ASKED, CALLED, RESULT], [PROBE_TOOL]),
    ("a call and its result", [SYSTEM, ASKED, CALLED, RESULT, ANSWERED, ASKED], [PROBE_TOOL]),
    ("reasoning", [ASKED, THOUGHT, ASKED], []),
    ("reasoning", [ASKED, CALLED | {"reasoning_content": "Ask."}, RESULT], [PROBE_TOOL]),
)


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


def dialogue_for(tokenizer, model: str, renderer: str = AUTO) -> Dialogue:
    """`renderer`: `auto`, `template`, or the name of a hand-written one. UserError for any other.

    `auto` takes the hand-written renderer of a model that is known by name, if it writes a handful
    of conversations exactly as the tokenizer's own chat template does. `note` says what was chosen.
    """
    if renderer == TEMPLATE:
        return TemplateDialogue(tokenizer)
    if renderer != AUTO:
        known = names()
        if renderer not in known:
            choices = ", ".join((AUTO, TEMPLATE, *known))
            raise UserError(f"unknown renderer {renderer!r}: choose one of {choices}")
        return HandWrittenDialogue(tokenizer, renderer, model)
    reasons = []
    for known_as, name in candidates(model):
        try:
            dialogue = HandWrittenDialogue(tokenizer, name, known_as)
        except UserError as error:
            reasons.append(str(error))
            continue
        if (what := difference(dialogue, tokenizer)) is None:
            return dialogue
        reasons.append(f"it writes {what} in another way than the renderer {name}")
    return TemplateDialogue(tokenizer, reasons[0] if reasons else "no renderer knows the model")


def candidates(model: str) -> Iterator[tuple[str, str]]:
    """-> (a model, the name of its renderer) for those with this name, which may be a mirror's."""
    known = models()
    if model in known:
        yield model, known[model]
        return
    wanted = plain_name(model)
    found = set()
    for known_as, name in known.items():
        if plain_name(known_as) == wanted and name not in found:
            found.add(name)
            yield known_as, name


def plain_name(model: str) -> str:
    """The last part of a name, without how its weights are quantised."""
    name = model.rstrip("/").rpartition("/")[2].lower()
    return QUANTISED.sub("", name)


def difference(dialogue: HandWrittenDialogue, tokenizer) -> str | None:
    """What a renderer and the tokenizer's chat template write differently; None: nothing."""
    if not tokenizer.chat_template:
        return None
    template = TemplateDialogue(tokenizer)
    for what, messages, tools in PROBES:
        expected = template.tokens(template.tried(messages, tools))
        try:
            if expected and dialogue.render(messages, tools) != expected:
                return what
        except UserError:
            return what
    return None

"""Which of the two writes a model's turns: a hand-written renderer, or the chat template."""

import re
from collections.abc import Iterator

from unslothrl.dialogue import hand_written
from unslothrl.dialogue.base import Dialogue, Message, Tool
from unslothrl.dialogue.calls import NAME, PROBE_TOOL
from unslothrl.dialogue.hand_written import HandWrittenDialogue
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.errors import UserError

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


def dialogue_for(tokenizer, model: str, renderer: str = AUTO) -> Dialogue:
    """`renderer`: `auto`, `template`, or the name of a hand-written one. UserError for any other.

    `auto` takes the hand-written renderer of a model that is known by name, if it writes a handful
    of conversations exactly as the tokenizer's own chat template does. `note` says what was chosen.
    """
    if renderer == TEMPLATE:
        return TemplateDialogue(tokenizer)
    if renderer != AUTO:
        known = hand_written.names()
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
    known = hand_written.models()
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

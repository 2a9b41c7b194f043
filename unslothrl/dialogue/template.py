"""Turns by the model's own chat template.

To continue a conversation the template renders all of it, replies as they were written. Where that
begins with exactly the text so far, the rest is tokenised and appended. Where it does not, as with
templates that drop the reasoning of earlier turns, a new sequence begins with all of it.

A template without tools, or whose calls `calls.py` cannot read, gets Hermes' form: the tools in the
system message, calls in <tool_call>, and results as a turn of the user in <tool_response>.
"""

from collections.abc import Sequence
from functools import cached_property

from unslothrl.data import rendering
from unslothrl.dialogue.base import (
    Extension,
    History,
    Message,
    Prompt,
    Reply,
    Tool,
    ToolCall,
    as_message,
)
from unslothrl.dialogue.calls import (
    HERMES,
    NAME,
    PROBE_TOOL,
    CallForm,
    TaggedForm,
    as_texts,
    form_of,
    has_tools,
    with_tools,
)
from unslothrl.dialogue.markers import Markers
from unslothrl.errors import UserError

PROBE: list[Message] = [
    {"role": "user", "content": "-"},
    {"role": "assistant", "content": "-"},
    {"role": "user", "content": "-"},
]
OPEN, CLOSE = "<think>", "</think>"
RESULT = "zqresult7"
TAIL = 16  # tokens at the end of a prompt, in which reasoning may have been opened


class TemplateDialogue:
    """Writes and reads turns by `apply_chat_template` of a tokenizer."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    # What the template is asked once.

    @cached_property
    def special(self) -> Markers:
        return Markers(self.tokenizer)

    @cached_property
    def markers(self) -> Markers:
        """Of observations: with the tokens that the template itself writes."""
        texts = (self.tried(PROBE, tools) for tools in ([], [PROBE_TOOL]))
        return Markers(self.tokenizer, self.ends.union(*map(self.tokens, texts)))

    @cached_property
    def ends(self) -> frozenset[int]:
        """Tokens that end a turn: the tokenizer's, and the one that the template writes."""
        found = {self.tokenizer.eos_token_id}
        ended = self.tried([PROBE[0], {"role": "assistant", "content": RESULT}], [], False)
        if RESULT in ended:
            found.update(self.tokens(ended.rpartition(RESULT)[2])[:1])
        return frozenset(found & self.single)

    @cached_property
    def single(self) -> set[int]:
        """Tokens that stand for a text of their own."""
        return set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)

    @cached_property
    def adds_space(self) -> bool:
        """Whether a text begins with a space that it has not, as with SentencePiece."""
        return self.decode(self.tokens("-") + self.tokens("a")) != "-a"

    @cached_property
    def native(self) -> CallForm | TaggedForm | None:
        """The template's own form of calls; None: Hermes' form instead of it."""
        user = PROBE[0]
        result: Message = {"role": "tool", "content": RESULT, "name": NAME}
        result["tool_call_id"] = "call00000"
        if NAME not in self.tried([user], [PROBE_TOOL]):
            return None
        call = {"name": NAME, "arguments": {}}
        calls = [{"id": "call00000", "type": "function", "function": call}]
        for reply in ({"content": "-"}, {"content": "", "tool_calls": calls}):
            said = {"role": "assistant", **reply}
            if RESULT in self.tried([user, said, result], [PROBE_TOOL]):
                return form_of(self.tried)
        return None

    @cached_property
    def has_system(self) -> bool:
        system = {"role": "system", "content": RESULT}
        return RESULT in self.tried([system, PROBE[0]], [PROBE_TOOL])

    @cached_property
    def writes_texts(self) -> bool:
        """Some templates of vision models leave out a content that is a plain text."""
        words = ("zqone7", "zqtwo7", "zqthree7")
        turns = [{**turn, "content": word} for turn, word in zip(PROBE, words, strict=True)]
        text = self.written(turns, [])
        return all(text.count(word) == 1 for word in words)

    # A conversation.

    def opened(self, messages: Sequence[Message], tools: Sequence[Tool]) -> History:
        opened = self._texts(list(messages))
        if tools and self.native is None:
            role = "system" if self.has_system else "user"
            opened = with_tools(opened, tools, role)
        return History(list(opened), list(opened), list(tools))

    def prompt(self, history: History) -> Prompt:
        """The whole conversation rendered, up to where the policy begins to write."""
        text = self._render(history.raw, history)
        return Prompt(self.tokens(text), text)

    def read(
        self, reply_ids: tuple[int, ...], prompt: Prompt, history: History
    ) -> tuple[Reply, Message, Message]:
        """-> (a reply, what stands for it in the two forms of the history)."""
        ended = bool(reply_ids) and reply_ids[-1] in self.ends
        raw = self._said(reply_ids[:-1] if ended else reply_ids, prompt)
        text = self.decode(reply_ids, skip_special_tokens=True)
        reasoning, rest = reasoned(raw, self._is_open(prompt))
        left_over: list[str] = []
        calls: list[ToolCall] = []
        if history.tools:
            rest, found = (self.native or HERMES).read(rest, history.tools)
            left_over = [call.text for call in found if call.error]
            for number, call in enumerate(found, history.count):
                calls.append(ToolCall(call.name, call.arguments, call.error, f"call{number:05}"))
        changed = bool(calls) or reasoning is not None
        content = self.special.removed(rest).strip() if changed else text
        reply = Reply(text, content, reasoning, tuple(calls))
        message: Message = {"role": "assistant", "content": raw}
        return reply, message, as_message(reply, "\n".join(left_over))

    def extended(
        self, reply_ids: tuple[int, ...], new: list[Message], prompt: Prompt, history: History
    ) -> tuple[Extension, Prompt]:
        """What follows a reply, which is the last message of `history`. UserError if refused."""
        new = self._texts(self.markers.clean(new))
        if not self.writes_texts:
            raise UserError(
                "model: its chat template does not write every turn once, so that turns cannot "
                "follow a reply: choose another model, or --environment single_turn"
            )
        so_far, last = self._text_of(prompt, history), reply_ids[-1:]
        for ended in self._may_end(last):
            raw = self._said(reply_ids[:-1] if ended else reply_ids, prompt)
            said = {**history.raw[-1], "content": raw}
            rendered = self._rendered(said, new, history)
            if rendered.startswith(so_far + raw):
                ids = self.tokens(rendered[len(so_far + raw) :])
                if ids[:1] == last if ended else self._starts_well(ids):
                    history.extend(new, said)
                    ids = ids[ended:]
                    return Extension(ids, True), Prompt(prompt.ids + reply_ids + ids, rendered)
        history.extend(new, said)
        ids = self.tokens(rendered)
        return Extension(ids, False), Prompt(ids, rendered)

    def _starts_well(self, ids: tuple[int, ...]) -> bool:
        """Whether nothing stands between a reply that was cut off and what follows it."""
        return not self.adds_space or not ids or ids[0] in self.single

    def _may_end(self, last: tuple[int, ...]) -> list[bool]:
        """Whether a reply's last token ends its turn. One that stands for a text of its own may do
        so where nothing says it, as `<|user|>` in GLM, or be a part of what was written.
        """
        if not last or last[0] not in self.single:
            return [False]
        return [True] if last[0] in self.ends else [True, False]

    def _said(self, ids: tuple[int, ...], prompt: Prompt) -> str:
        """What the policy has written after a prompt, special tokens kept."""
        before = prompt.ids[-1:]  # a SentencePiece decoder drops the first token's space
        text, start = self.decode(before + ids), self.decode(before)
        return text[len(start) :] if text.startswith(start) else self.decode(ids)

    def _is_open(self, prompt: Prompt) -> bool:
        """Whether the policy goes on in reasoning that its prompt has opened."""
        return self.decode(prompt.ids[-TAIL:]).rstrip().endswith(OPEN)

    def _text_of(self, prompt: Prompt, history: History) -> str:
        """Of a prompt that was rendered elsewhere, if not here. `history` has the reply to it."""
        if prompt.text is not None:
            return prompt.text
        text = self.tried(history.raw[:-1], self._tools(history))
        return text if text and self.tokens(text) == prompt.ids else self.decode(prompt.ids)

    def _rendered(self, said: Message, new: list[Message], history: History) -> str:
        try:
            return self._render([*history.raw[:-1], said, *new], history)
        except UserError:  # results of calls that the template does not see in a plain text
            return self._render(history.parsed + new, history)

    def _render(self, messages: list[Message], history: History) -> str:
        return self.written(messages, self._tools(history))

    def _tools(self, history: History) -> list[Tool]:
        """Those that the template writes itself."""
        return list(history.tools) if history.tools and self.native else []

    def written(
        self, messages: list[Message], tools: list[Tool], add_generation_prompt: bool = True
    ) -> str:
        return rendering.by_template(
            self.tokenizer,
            messages,
            "choose another model or environment",
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
        )

    def tried(
        self, messages: list[Message], tools: list[Tool], add_generation_prompt: bool = True
    ) -> str:
        """As `written`; "" where the template refuses."""
        try:
            return self.written(messages, tools, add_generation_prompt)
        except UserError:
            return ""

    def tokens(self, text: str) -> tuple[int, ...]:
        """Of a text in which the template has written the special tokens."""
        if not text:
            return ()
        (ids,) = self.tokenizer([text], add_special_tokens=False, verbose=False)["input_ids"]
        return tuple(ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def _texts(self, messages: list[Message]) -> list[Message]:
        """Calls and results as text, where the template cannot write them."""
        if not has_tools(messages) or self.native is not None:
            return messages
        return as_texts(messages)


def reasoned(raw: str, is_open: bool) -> tuple[str | None, str]:
    """-> (the reasoning that a reply begins with or goes on with, the rest)."""
    text = raw.lstrip()
    if not is_open and not text.startswith(OPEN):
        return None, raw
    thought, _, rest = text.removeprefix(OPEN).partition(CLOSE)
    return thought.strip("\n"), rest

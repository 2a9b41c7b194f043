"""Turns by the model's own chat template.

A template without tools, or whose calls `calls.py` cannot read, gets Hermes' form: the tools in the
system message, calls in <tool_call>, and results as a turn of the user in <tool_response>.

Text of an observation that would be read as a special token, and could forge a turn, is broken.
What a tool returns may contain `<|im_end|>`. The policy reads `< |im_end|>`: it can see what stood
there, and the tokenizer finds ordinary text. Broken are the special tokens of the tokenizer and the
other single tokens that the model's turns are made of. What the policy writes is never touched.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from unslothrl.data import rendering
from unslothrl.dialogue.calls import (
    NAME,
    PROBE_TOOL,
    TOOLS,
    CallForm,
    TaggedForm,
    Tool,
    as_texts,
    form_of,
    has_tools,
)
from unslothrl.environments.base import Message
from unslothrl.errors import UserError

PROBE: list[Message] = [
    {"role": "user", "content": "-"},
    {"role": "assistant", "content": "-"},
    {"role": "user", "content": "-"},
]
RESULT = "zqresult7"
FIELDS = ("content", "name", "tool_call_id")
REPLACEMENT = "\ufffd"  # of a special token that is a single character


class Markers:
    """The special tokens of a tokenizer. `written`: what its turns are made of, as token ids."""

    def __init__(self, tokenizer, written: Iterable[int] = ()):
        added, written = tokenizer.added_tokens_decoder, set(written)
        texts = set(tokenizer.all_special_tokens) | {
            str(token.content)
            for token_id, token in added.items()
            if token.special or token_id in written
        }
        longest_first = sorted(filter(None, texts), key=lambda text: (-len(text), text))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        # What a tokenizer does to a text before it looks for special tokens; None: nothing
        normal = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        changes = any(token.normalized for token in added.values())
        self._normalise = normal.normalize_str if normal is not None and changes else None

    def broken(self, text: str) -> str:
        """The text without any special token in it."""
        if self._normalise is not None and self._pattern.search(normal := self._normalise(text)):
            text = normal
        while self._pattern.search(text):
            text = self._pattern.sub(
                lambda found: f"{found[0][0]} {found[0][1:]}" if found[0][1:] else REPLACEMENT, text
            )
        return text

    def removed(self, text: str) -> str:
        return self._pattern.sub("", text)

    def clean(self, messages: Sequence[Message]) -> list[Message]:
        """Observations that cannot forge a turn: without keys such as `tool_calls`."""
        return [
            {"role": message["role"]}
            | {key: self.broken(message[key]) for key in FIELDS if message.get(key) is not None}
            for message in messages
        ]


class TemplateDialogue:
    """Writes and reads turns by `apply_chat_template` of a tokenizer."""

    def __init__(self, tokenizer, **more: Any):
        """`more`: what the template is told besides messages and tools."""
        self.tokenizer, self.more = tokenizer, more

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

    def written(
        self, messages: list[Message], tools: list[Tool], add_generation_prompt: bool = True
    ) -> str:
        return rendering.by_template(
            self.tokenizer,
            messages,
            "choose another model or environment",
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            **self.more,
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
        return tuple(rendering.tokenise(self.tokenizer, [text])[0]) if text else ()

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def prepared(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> tuple[list[Message], list[Tool]]:
        """What the template is given: calls and tools as text, where it cannot write them."""
        texts = list(messages)
        if not tools and not has_tools(texts):
            return texts, []
        if self.native is not None:
            return texts, list(tools)
        texts = as_texts(texts)
        if tools:  # after the system message or, where there can be none, before the user's first
            role = "system" if self.has_system else "user"
            said = TOOLS.format(tools="\n".join(json.dumps(t, ensure_ascii=False) for t in tools))
            if not texts or texts[0]["role"] != role:
                return [{"role": role, "content": said}, *texts], []
            given = texts[0]["content"]
            parts = (given, said) if role == "system" else (said, given)
            texts[0] = {**texts[0], "content": "\n\n".join(parts)}
        return texts, []

"""One episode's conversation, from its first prompt to the last reply.

To continue it the template renders all of it, replies as they were written. Where that begins with
exactly the text so far, the rest is tokenised and appended. Where it does not, as with templates
that drop the reasoning of earlier turns, a new sequence begins with all of it.
"""

from collections.abc import Sequence
from dataclasses import replace

from unslothrl.dialogue.calls import HERMES, Tool, as_texts, has_tools
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.environments.base import Action, Message, ToolCall
from unslothrl.errors import UserError

OPEN, CLOSE = "<think>", "</think>"
TAIL = 16  # tokens at the end of a prompt, in which reasoning may have been opened


class Conversation:
    """Takes what was sampled and what an environment says in turn.

    `prompt_ids`: what the policy reads before its turn, which begins with all earlier turns of a
    sequence; the first prompt's are given where it is rendered already. UserError where the model's
    template refuses the messages.
    """

    def __init__(
        self,
        dialogue: TemplateDialogue,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        prompt_ids: Sequence[int] | None = None,
    ):
        self.dialogue, self.tools = dialogue, list(tools)
        opened, self.native_tools = dialogue.prepared(messages, tools)  # that the template writes
        # The messages so far in two forms: a reply's content is all that was written, or its
        # reasoning and its calls are fields of their own.
        self.raw, self.parsed = list(opened), list(opened)
        self.calls: tuple[ToolCall, ...] = ()  # of the last reply
        self.count = 0  # of calls so far
        self.reply_ids: tuple[int, ...] = ()  # of the last reply
        if prompt_ids is None:
            self.text = dialogue.written(self.raw, self.native_tools)  # of the prompt
            self.prompt_ids = dialogue.tokens(self.text)
        else:
            self.text = dialogue.tried(self.raw, self.native_tools)
            self.prompt_ids = tuple(prompt_ids)
            if dialogue.tokens(self.text) != self.prompt_ids:
                self.text = dialogue.decode(self.prompt_ids)

    def reply(self, token_ids: Sequence[int]) -> Action:
        """Takes the policy's turn, whole or cut off. -> its text, and its parts."""
        dialogue, ids = self.dialogue, tuple(token_ids)
        raw = self._said(ids[:-1] if ids and ids[-1] in dialogue.ends else ids)
        # The prompt may have opened the reasoning that the policy continues.
        is_open = dialogue.decode(self.prompt_ids[-TAIL:]).rstrip().endswith(OPEN)
        reasoning: str | None = None
        rest = raw
        if is_open or raw.lstrip().startswith(OPEN):
            thought, _, rest = raw.lstrip().removeprefix(OPEN).partition(CLOSE)
            reasoning = thought.strip("\n")
        found: list[ToolCall] = []
        if self.tools:
            rest, found = (dialogue.native or HERMES).read(rest, self.tools)
        calls = tuple(
            replace(call, id=f"call{number:05}") for number, call in enumerate(found, self.count)
        )
        content = text = dialogue.decode(ids, skip_special_tokens=True)
        if calls or reasoning is not None:
            content = dialogue.special.removed(rest).strip()
        reply = Action.of(text, content, reasoning, calls)
        self.reply_ids, self.calls, self.count = ids, calls, self.count + len(calls)
        self.raw.append({"role": "assistant", "content": raw})
        self.parsed.append(as_message(reply))
        return reply

    def add(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], bool]:
        """Takes what the environment says to the reply; then the policy writes its next turn.
        -> (ids to append after the reply or, in a new sequence, the whole prompt; whether they
        continue the sequence).

        Results of tools name their call by `tool_call_id`; without one they are taken in the order
        of the calls. Where a result cannot be written as one, since its call cannot be read, it is
        written as a turn of the user, in <tool_response>.
        """
        new = self._paired(messages)
        try:
            return self._extended(new)
        except UserError:
            if not has_tools(new):
                raise
            return self._extended(as_texts(new))

    def _extended(self, new: list[Message]) -> tuple[tuple[int, ...], bool]:
        """What follows the reply, the last message so far. UserError if refused."""
        dialogue, last = self.dialogue, self.reply_ids[-1:]
        new, _ = dialogue.prepared(dialogue.markers.clean(new))
        if not dialogue.writes_texts:
            raise UserError(
                "model: its chat template does not write every turn once, so that turns cannot "
                "follow a reply: choose another model, or --environment single_turn"
            )
        for ended in self._may_end(last):
            raw = self._said(self.reply_ids[:-1] if ended else self.reply_ids)
            said = {**self.raw[-1], "content": raw}
            try:
                rendered = dialogue.written([*self.raw[:-1], said, *new], self.native_tools)
            except UserError:  # results of calls that the template does not see in a plain text
                rendered = dialogue.written(self.parsed + new, self.native_tools)
            if rendered.startswith(self.text + raw):
                ids = dialogue.tokens(rendered[len(self.text + raw) :])
                # Nothing may stand between a reply that was cut off and what follows it.
                follows = not dialogue.adds_space or not ids or ids[0] in dialogue.single
                if ids[:1] == last if ended else follows:
                    before, ids = self.prompt_ids + self.reply_ids, ids[ended:]
                    break
        else:
            before, ids = (), dialogue.tokens(rendered)
        self.raw[-1:] = [said, *new]
        self.parsed += new
        self.text, self.prompt_ids = rendered, before + ids
        return ids, bool(before)

    def _may_end(self, last: tuple[int, ...]) -> list[bool]:
        """Whether a reply's last token ends its turn. One that stands for a text of its own may do
        so where nothing says it, as `<|user|>` in GLM, or be a part of what was written.
        """
        if not last or last[0] not in self.dialogue.single:
            return [False]
        return [True] if last[0] in self.dialogue.ends else [True, False]

    def _said(self, ids: tuple[int, ...]) -> str:
        """What the policy has written after the prompt, special tokens kept."""
        before = self.prompt_ids[-1:]  # a SentencePiece decoder drops the first token's space
        text, start = self.dialogue.decode(before + ids), self.dialogue.decode(before)
        return text[len(start) :] if text.startswith(start) else self.dialogue.decode(ids)

    def _paired(self, messages: Sequence[Message]) -> list[Message]:
        """With the id and the name of the call in each result."""
        calls = {call.id: call for call in self.calls}
        answered = {message.get("tool_call_id") for message in messages}
        waiting = [call for call in self.calls if call.id not in answered]
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


def as_message(reply: Action) -> Message:
    """A reply with reasoning and calls apart. Calls that cannot be made are text."""
    unparsed = [call.text for call in reply.calls if call.error]
    content = "\n".join(filter(None, (reply.content, "\n".join(unparsed))))
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

"""Conversations as the token ids that a trainer gets, and which of them are learnt.

What is learnt of a reply is what a policy would have sampled: the tokens after the prompt that the
chat template writes before it, up to the one that ends the turn. Prompt and reply are tokenised
apart, as they are in a rollout. Where the template rewrites earlier turns (Qwen3 leaves out their
reasoning), a turn begins a sequence of its own, with all before it as the template then writes it,
as it does in an episode (`dialogue`). Of an answer in a pair, which is one sequence, such a turn is
not learnt but read.

A base without a chat template learns texts alone: a prompt and what follows it, as they stand, and
the token that ends a text.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.errors import UserError
from unslothrl.offline.examples import Example, Message, Pair
from unslothrl.tracking import origin

REWRITTEN = (
    "the chat template rewrites earlier turns of an answer: those are read, only the later ones "
    "are learnt"
)
NO_TEMPLATE = (
    "the model has no chat template: prompts and answers are learnt as plain texts, and RL, chat, "
    "ask and eval cannot use the adapter"
)


@dataclass(frozen=True)
class Written:
    """A row of the trainer's: `learnt` says of each token whether it counts in the loss."""

    ids: tuple[int, ...]
    learnt: tuple[bool, ...]

    @classmethod
    def all_of(cls, ids: Sequence[int]) -> "Written":
        return cls(tuple(ids), (True,) * len(ids))


def at(started: str) -> dict[str, Any]:
    """What has a template tell the time that a run began, or nothing where that is not known: a run
    that is resumed on another day has the same rows."""
    with contextlib.suppress(ValueError):  # of a damaged run.json
        moment = time.strptime(started, origin.TIME)
        return {"strftime_now": lambda form: time.strftime(form, moment)}
    return {}


class Writer:
    """Writes examples by a tokenizer and its chat template; UserError where that refuses one.
    `notes`: what a reader of the run must know, each once."""

    def __init__(self, tokenizer, only_replies: bool = True, started: str = ""):
        """`started`: the time at which templates write the date, "": now."""
        self.tokenizer, self.only_replies = tokenizer, only_replies
        self.template = TemplateDialogue(tokenizer, **at(started))
        self.tokens = self.template.tokens
        self.has_template = bool(tokenizer.chat_template)
        self.notes: dict[str, None] = {} if self.has_template else {NO_TEMPLATE: None}

    def joined(self, parts: Sequence[tuple[str, bool]]) -> Written:
        """Of (text, whether it is learnt) in order, each tokenised by itself."""
        ids, learnt = list[int](), list[bool]()
        for text, is_learnt in parts:
            tokens = self.tokens(text)
            ids += tokens
            learnt += [is_learnt] * len(tokens)
        return Written(tuple(ids), tuple(learnt))

    def sequences(self, example: Example) -> list[Written]:
        """An example as one sequence, or more where the template rewrites earlier turns."""
        if not example.messages:
            (ids,) = self.tokenizer([example.text], verbose=False)["input_ids"]
            end = self.tokenizer.eos_token_id
            return [Written.all_of(ids if end is None or ids[-1:] == [end] else [*ids, end])]
        if not self.has_template:
            prompt, reply = self.as_texts(example.messages, example.is_plain)
            learnt = (not self.only_replies,) * len(prompt) + (True,) * len(reply)
            return [Written(prompt + reply, learnt)]
        messages, tools = self.template.prepared(example.messages, example.tools)
        if not self.only_replies:
            return [Written.all_of(self.tokens(self.template.written(messages, tools, False)))]
        found: list[Written] = []
        parts: list[tuple[str, bool]] = []
        written = ""
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, said = self.reply(messages[:number], message, tools)
            if not before.startswith(written):
                found.append(self.joined(parts))
                parts, written = [], ""
            parts += [(before[len(written) :], False), (said, True)]
            written = before + said
        return [*found, self.joined(parts)]

    def as_texts(
        self, messages: Sequence[Message], is_plain: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """-> (a prompt's tokens, its reply's with the end). UserError for a conversation."""
        if not is_plain or [each["role"] for each in messages] != ["user", "assistant"]:
            raise UserError(
                "a conversation, and the model has no chat template: choose an instruct model, or "
                "give texts"
            )
        prompt, reply = (each["content"] for each in messages)
        (ids,) = self.tokenizer([prompt], verbose=False)["input_ids"]
        end = self.tokenizer.eos_token_id
        if end is not None and ids[-1:] == [end]:  # some tokenizers end every text
            ids = ids[:-1]
        return tuple(ids), self.tokens(reply) + (() if end is None else (end,))

    def pair(self, pair: Pair) -> tuple[tuple[int, ...], Written, Written]:
        """-> (a prompt's tokens, what follows it in the better answer, and in the worse)."""
        both = [(*pair.messages, *said) for said in (pair.chosen, pair.rejected)]
        if not self.has_template:
            (prompt_ids, chosen), (_, rejected) = (self.as_texts(m, pair.is_plain) for m in both)
            return prompt_ids, Written.all_of(chosen), Written.all_of(rejected)
        prompts: list[str] = []
        answers: list[tuple[str, list[Message], list[Any], int]] = []
        for turns, said in zip(both, (pair.chosen, pair.rejected), strict=True):
            messages, tools = self.template.prepared(turns, pair.tools)
            number = len(messages) - len(said)
            prompts.append(self.template.written(messages[:number], tools))
            last = self.template.written(messages[:-1], tools)
            text = self.up_to_end(self.template.written(messages, tools, False), last)
            answers.append((text, messages, tools, number))
        texts, prompt = [text for text, *_ in answers], prompts[0]
        same = commonprefix([*prompts, *texts])  # noqa: RUF071  # of texts, which are no paths
        if same != prompt:
            same = prompt if all(text.startswith(prompt) for text in texts) else same
            if len(pair.chosen) == len(pair.rejected) == 1:
                self.note_on(prompt, same)
        chosen_ids, rejected_ids = (self.answer(len(same), *each) for each in answers)
        return self.tokens(same), chosen_ids, rejected_ids

    def answer(
        self, begin: int, text: str, messages: list[Message], tools: list[Any], number: int
    ) -> Written:
        """What a text of all turns has from the character `begin` on, of which the assistant's
        turns are learnt, the first of them being the turn `number`."""
        if number == len(messages) - 1:
            return Written.all_of(self.tokens(text[begin:]))
        parts: list[tuple[str, bool]] = []
        at = begin
        for turn in range(number, len(messages)):
            if messages[turn]["role"] != "assistant":
                continue
            before, said = self.reply(messages[:turn], messages[turn], tools)
            if not text.startswith(before + said):
                self.notes[REWRITTEN] = None
                continue
            start, end = max(at, begin if turn == number else len(before)), len(before + said)
            parts += [(text[at:start], False), (text[start:end], True)]
            at = end
        return self.joined(parts)

    def reply(self, before: list[Message], message: Message, tools: list) -> tuple[str, str]:
        """-> (the text before a reply, the reply's own with the end of its turn)."""
        prompt = self.template.written(before, tools)
        text = self.template.written([*before, message], tools, False)
        text = self.up_to_end(text, prompt)
        if text.startswith(prompt):
            return prompt, text[len(prompt) :]
        same = commonprefix([prompt, text])  # noqa: RUF071
        self.note_on(prompt, same)
        return same, text[len(same) :]

    def note_on(self, prompt: str, same: str) -> None:
        if rest := prompt[len(same) :]:
            self.notes[
                f"the chat template ends a prompt with {rest[-40:]!r}, and writes a reply without "
                "it: what is learnt begins where the two part"
            ] = None

    def up_to_end(self, text: str, prompt: str) -> str:
        """A conversation's text without what the template writes after the end of the last turn."""
        ids, begin = self.tokens(text), len(commonprefix([text, prompt]))  # noqa: RUF071
        for number in range(len(ids), 0, -1):
            if ids[number - 1] in self.template.ends:
                rest = self.template.decode(ids[number:])
                end = len(text) - len(rest) if text.endswith(rest) else len(text)
                if end > begin:
                    return text[:end]
                break  # it is the end of an earlier turn
        self.notes["the chat template ends no turn with a token: when to stop is not learnt"] = None
        return text

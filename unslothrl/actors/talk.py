"""What an episode's policy and environment say to each other, as tokens."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from unslothrl.dialogue.base import Dialogue, Extension, Message, Reply
from unslothrl.dialogue.conversation import Conversation, checked_prompt
from unslothrl.records import Task


class Talk(Protocol):
    """Of one episode. An answer is an environment's, see `environments.forms`."""

    prompt: str  # the first prompt as text, where it is not the task's
    question: str  # what the user says first in it, likewise

    @property
    def prompt_ids(self) -> tuple[int, ...]: ...

    def reply(self, token_ids: Sequence[int]) -> Reply: ...

    def add(self, answer: dict[str, Any]) -> tuple[str, Extension]:
        """-> (what the policy reads next as text, its tokens). UserError."""


class Talking:
    """Begins them. The dialogue, which takes a moment to choose, is made when one is needed."""

    def __init__(self, tokenizer, make_dialogue: Callable[[], Dialogue]):
        self.tokenizer, self.make_dialogue = tokenizer, make_dialogue
        self.dialogue: Dialogue | None = None

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        return self.tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def ids(self, text: str) -> tuple[int, ...]:
        (ids,) = self.tokenizer([text], add_special_tokens=False)["input_ids"]
        return tuple(ids)

    def begin(self, task: Task, opened: dict[str, Any]) -> Talk:
        """`opened` is the environment's answer to `reset`. UserError."""
        if opened.get("wants_text"):
            return OfTexts(task, self)
        self.dialogue = self.dialogue or self.make_dialogue()
        messages, own, tools = first_messages(task, opened), messages_of(task), opened["tools"]
        if messages != own:
            checked_prompt(messages)
        is_own = not tools and messages == own
        prompt_ids = task.prompt_ids if is_own else None
        cleaned = [
            message if message in own else self.dialogue.clean([message])[0] for message in messages
        ]
        conversation = Conversation(self.dialogue, cleaned, tools, prompt_ids)
        prompt = "" if is_own else self.text_of_prompt(conversation.prompt_ids)
        question = "" if messages == own else first_question(messages)
        return OfMessages(conversation, prompt, question)

    def text_of_prompt(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )


def messages_of(task: Task) -> list[Message]:
    return [{"role": role, "content": content} for role, content in task.messages]


def first_messages(task: Task, opened: dict[str, Any]) -> list[Message]:
    """The task's own; with a text of the environment's behind, or as the user's turn in its place;
    or the environment's."""
    own = messages_of(task)
    given, more = opened.get("prompt"), opened.get("more")
    if more:
        return [*own[:-1], {**own[-1], "content": own[-1]["content"] + more}]
    if given is None:
        return own
    if isinstance(given, str):
        system = [message for message in own if message["role"] == "system"]
        return [*system, {"role": "user", "content": given}]
    return list(given)


def first_question(messages: Sequence[Message]) -> str:
    """What the user says first; without a user's turn, what is said last."""
    asked = [message["content"] for message in messages if message["role"] == "user"]
    return asked[0] if asked else messages[-1]["content"]


class OfMessages:
    """Turns that the model's chat template writes."""

    def __init__(self, conversation: Conversation, prompt: str, question: str):
        self.conversation, self.prompt, self.question = conversation, prompt, question

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.conversation.prompt_ids

    def reply(self, token_ids: Sequence[int]) -> Reply:
        return self.conversation.reply(token_ids)

    def add(self, answer: dict[str, Any]) -> tuple[str, Extension]:
        said = answer["observation"]
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        text = "\n".join(message["content"] for message in messages)
        return text, self.conversation.add(messages)


class OfTexts:
    """Texts as they are, as RL2 has them."""

    def __init__(self, task: Task, talking: Talking):
        self.prompt, self.question, self.talking = "", "", talking
        self.prompt_ids = task.prompt_ids

    def reply(self, token_ids: Sequence[int]) -> Reply:
        text = self.talking.text(token_ids)
        return Reply(text, text)

    def add(self, answer: dict[str, Any]) -> tuple[str, Extension]:
        raw = answer["raw"]
        return raw["text"], Extension(self.talking.ids(raw["text"]), raw["continues"])

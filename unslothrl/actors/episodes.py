"""An episode: one task, one seed, one environment, and the record of tokens that comes of them; and
what the policy and the environment say to each other, as tokens.

Each turn begins under the newest policy version that its engine has then, so an episode of several
turns may be drawn under several versions. A turn ends under the version that it began with, unless
the episode follows the newest (`--partial_rollouts`).
"""

import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.environments.base import DEFAULT_TURNS, TURN_REWARDS, Lost, Message, ToolCall
from unslothrl.errors import UserError
from unslothrl.records import (
    MOST_REWARD,
    Call,
    Completion,
    Request,
    Task,
    Transcript,
    Turn,
    seed_of,
)
from unslothrl.tracking.rows import plain

if TYPE_CHECKING:  # not loaded where no environment runs
    from unslothrl.dialogue.conversation import Conversation
    from unslothrl.environments.host import Host, Session

Draw = Callable[[Request], Awaitable[Completion]]
"""Has an engine draw a turn."""

CALL = ("name", "arguments", "error", "id")  # what an environment gets of a tool's
NOTHING = Completion.drawn((), (), "abort", 0)


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every episode of a run."""

    max_turns: int = 0  # 0: as many as the environment says
    context: int = 0  # tokens that a sequence may have, 0: any number
    max_prompt_tokens: int = 0  # of a prompt that an environment gives, 0: any number
    turn_rewards: str = "sum"  # how an episode's are made one: see `TURN_REWARDS`
    discount: float = 1.0


class Played(NamedTuple):
    """What became of an episode."""

    completion: Completion  # all turns and observations
    replies: tuple[str, ...]  # what the policy wrote, turn by turn: what rewards judge
    reward: float = 0.0  # what the environment gave, all turns together
    score: float | None = None  # what it calls correct, if it says
    lost: str = ""  # why its environment failed

    @property
    def first_prompt(self) -> tuple[int, ...] | None:
        """None: its task's."""
        transcript = self.completion.transcript
        if transcript is None:
            return None
        return transcript.earlier[0][0] if transcript.earlier else transcript.prompt_ids


async def complete(request: Request, draw: Draw, dialogue: TemplateDialogue) -> Played:
    """A single turn, without an environment."""
    completion = await draw(request)
    said = dialogue.decode(completion.token_ids.tolist(), skip_special_tokens=True)
    return Played(replace(completion, text=said), (said,))


async def play(
    task: Task,
    first: Request,
    group_seed: int,
    host: "Host",
    draw: Draw,
    dialogue: TemplateDialogue,
    rules: Rules,
) -> Played:
    """Turn by turn until the environment, which may fail, the turns or the tokens end it: what was
    drawn is kept. `first` asks for the first turn of the task's own prompt; `group_seed` is the
    environment's, the same for all candidates."""
    course = Course(task, first, rules)
    try:
        async with host.open() as session:
            await course.begin(session, dialogue, group_seed)
            await course.run(session, draw)
            course.check_rewards()
    except Lost as lost:
        return course.played(str(lost) or "it failed")
    return course.played()


class Course:
    """An episode on its way."""

    def __init__(self, task: Task, first: Request, rules: Rules):
        self.task, self.first, self.rules = task, first, rules
        self.talk: Conversation | None = None
        self.prompt = self.question = ""  # of the first prompt, where they are not the task's
        self.most_turns = rules.max_turns or DEFAULT_TURNS
        self.sequence: Completion | None = None  # that goes on, None before its first turn
        self.prompt_ids = task.prompt_ids  # of that sequence
        self.earlier: list[tuple[tuple[int, ...], Completion]] = []
        self.used = 0  # tokens of the episode so far
        self.turns: list[Turn] = []
        self.rewards: list[float] = []
        self.score: float | None = None
        self.end = ""  # "length" where an observation was too long

    async def begin(self, session: "Session", dialogue: TemplateDialogue, group_seed: int) -> None:
        task = self.task
        given = {
            "id": task.id, "problem": task.problem, "answer": task.answer, "prompt": task.prompt,
            "messages": [{"role": role, "content": text} for role, text in task.messages],
            "extra": plain(task.extra), "read": plain(task.read),
        }  # fmt: skip
        opened = await session.call("reset", task=given, seed=group_seed)
        gave_prompt = opened.get("prompt") is not None or bool(opened.get("more"))
        with of_the_environment(gave_prompt):
            self.talk, self.prompt, self.question = begun(dialogue, task, opened)
        self.prompt_ids = self.talk.prompt_ids
        most = self.rules.max_prompt_tokens
        if most and len(self.prompt_ids) > most and self.prompt_ids != task.prompt_ids:
            raise Lost(
                f"its prompt, with the schemas of tools, has {len(self.prompt_ids)} tokens, and "
                f"--max_prompt_tokens is {most}"
            )
        self.most_turns = self.rules.max_turns or opened.get("max_turns") or DEFAULT_TURNS

    async def run(self, session: "Session", draw: Draw) -> None:
        assert self.talk is not None
        while (room := min(self.first.sampling.max_new_tokens, self.left())) > 0:
            drawn = await draw(self.request(room))
            self.sequence = drawn if self.sequence is None else joined(self.sequence, drawn)
            self.used += len(drawn.token_ids)
            reply = self.talk.reply(drawn.token_ids.tolist())
            self.turns.append(Turn(str(reply), tool_calls=tuple(map(recorded, reply.calls))))
            if drawn.finish_reason == "abort":
                return
            if drawn.finish_reason != "stop":
                break
            answer = await session.call(
                "step",
                text=reply,
                content=reply.content,
                reasoning=reply.reasoning,
                calls=[{name: getattr(call, name) for name in CALL} for call in reply.calls],
            )
            self.take(answer)
            if answer["done"]:
                return
            if len(self.turns) >= self.most_turns:
                break
            self.observe(answer)
        self.rewards += [0.0] * (len(self.turns) - len(self.rewards))
        if self.rewards:
            self.rewards[-1] += (await session.call("finish"))["reward"]
            self.turns[-1] = replace(self.turns[-1], reward=self.rewards[-1])

    @property
    def reward(self) -> float:
        return TURN_REWARDS[self.rules.turn_rewards](self.rewards, self.rules.discount)

    def check_rewards(self) -> None:
        """Each is bounded where it is given, their sum here. Raises Lost."""
        largest = max([*self.rewards, self.reward], key=abs)
        if not abs(largest) < MOST_REWARD:
            raise Lost(f"its rewards come to {largest:g}: give less than {MOST_REWARD:g} in all")

    def left(self) -> int:
        """Tokens that may still come after what there is of the sequence."""
        length = len(self.prompt_ids) + (
            0 if self.sequence is None else len(self.sequence.token_ids)
        )
        left = self.first.sampling.episode_tokens - self.used
        return min(left, self.rules.context - length) if self.rules.context else left

    def request(self, room: int) -> Request:
        """What asks an engine for the next turn, with all that came before as its prompt."""
        first, turn = self.first, len(self.turns)
        before = [] if self.sequence is None else self.sequence.token_ids.tolist()
        return replace(
            first,
            id=f"{first.id}/{turn}" if turn else first.id,
            prompt_ids=(*self.prompt_ids, *before),
            seed=seed_of(first.seed, "turn", turn) if turn else first.seed,
            sampling=replace(first.sampling, max_new_tokens=room),
        )

    def take(self, answer: dict[str, Any]) -> None:
        """What an environment says of the last turn."""
        self.rewards.append(answer["reward"])
        self.score = self.score if answer["score"] is None else answer["score"]
        self.turns[-1] = replace(
            self.turns[-1],
            reward=answer["reward"],
            calls=answer.get("calls", 0),
            failed_calls=answer.get("errors", 0),
        )

    def observe(self, answer: dict[str, Any]) -> None:
        """Adds an observation to the sequence, or begins another one after it."""
        assert self.talk is not None and self.sequence is not None
        with of_the_environment():
            said, ids, is_continuation = added(self.talk, answer)
        self.turns[-1] = replace(self.turns[-1], observation=said)
        if is_continuation:
            left = self.left()
            self.sequence = observed(self.sequence, ids[:left])
            self.used += len(ids)
            if len(ids) >= left:
                self.end = "length"
            return
        self.earlier.append((self.prompt_ids, self.sequence))
        self.prompt_ids, self.sequence = ids, None

    def played(self, lost: str = "") -> Played:
        if self.sequence is None and self.earlier:  # no room was left for another turn
            self.prompt_ids, self.sequence = self.earlier.pop()
            self.end = self.end or "length"
        sequence = self.sequence or NOTHING
        is_own = self.prompt_ids == self.task.prompt_ids
        replies = tuple(turn.reply for turn in self.turns)
        transcript = Transcript(
            tuple(self.turns),
            prompt="" if is_own and not self.earlier else self.prompt,
            question=self.question,
            prompt_ids=None if is_own else self.prompt_ids,
            earlier=tuple(self.earlier),
        )
        reason = "lost" if lost else self.end or sequence.finish_reason
        text = replies[0] if len(replies) == 1 else transcript.text("\n")
        completion = replace(sequence, text=text, finish_reason=reason, transcript=transcript)
        return Played(completion, replies, 0.0 if lost else self.reward, self.score, lost)


@contextlib.contextmanager
def of_the_environment(gave_texts: bool = True) -> Iterator[None]:
    """Around what is made of an environment's texts: whatever that raises costs the episode. Where
    it gave none, what a template refuses is the user's."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError):  # the template refuses what the environment says
            if not gave_texts:
                raise
            raise Lost(str(error)) from None
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise Lost(f"what it says cannot be read ({said:.200})") from error


def of_one_prompt(played: list[Played]) -> list[Played]:
    """A group's episodes. Those with another prompt than most are lost: candidates are compared."""
    prompts = [each.first_prompt for each in played if not each.lost]
    if len(set(prompts)) < 2:
        return played
    usual, _ = Counter(prompts).most_common(1)[0]
    reason = "its prompt is another one than that of other candidates: reset must follow the seed"
    return [
        each
        if each.lost or each.first_prompt == usual
        else each._replace(
            completion=replace(each.completion, finish_reason="lost"), reward=0.0, lost=reason
        )
        for each in played
    ]


def recorded(call: ToolCall) -> Call:
    arguments = "" if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False)
    return Call(call.name, arguments, call.error)


def joined(record: Completion, turn: Completion) -> Completion:
    """A record with one more turn of the policy."""
    return Completion(
        np.concatenate([record.token_ids, turn.token_ids]),
        np.concatenate([record.logprobs, turn.logprobs]),
        np.concatenate([record.sampled, turn.sampled]),
        np.concatenate([record.versions, turn.versions]),
        turn.finish_reason,
    )


def observed(record: Completion, ids: tuple[int, ...]) -> Completion:
    """A record with what an environment said: tokens that nothing sampled."""
    version = record.versions[-1] if len(record.versions) else 0
    said = Completion.drawn(ids, [0.0] * len(ids), record.finish_reason, version)
    return joined(record, replace(said, sampled=~said.sampled))


def begun(
    dialogue: TemplateDialogue, task: Task, opened: dict[str, Any]
) -> "tuple[Conversation, str, str]":
    """`opened` is the environment's answer to `reset`, see `environments.forms`. -> (the
    conversation; its prompt and what the user says first in it, as text where they are not the
    task's). UserError."""
    from unslothrl.dialogue.conversation import Conversation

    own = [{"role": role, "content": content} for role, content in task.messages]
    messages, tools = first_messages(own, opened), opened["tools"]
    is_own = not tools and messages == own
    prompt_ids = task.prompt_ids if is_own else None
    cleaned = [
        message if message in own else dialogue.markers.clean([message])[0] for message in messages
    ]
    conversation = Conversation(dialogue, cleaned, tools, prompt_ids)
    prompt = "" if is_own else dialogue.decode(conversation.prompt_ids)
    if messages == own:
        return conversation, prompt, ""
    asked = [message["content"] for message in messages if message["role"] == "user"]
    return conversation, prompt, asked[0] if asked else messages[-1]["content"]


def added(talk: "Conversation", answer: dict[str, Any]) -> tuple[str, tuple[int, ...], bool]:
    """-> (what the policy reads next as text, and as `Conversation.add` has it). UserError."""
    if "raw" in answer:  # texts as they are, as RL2 has them
        text, continues = answer["raw"]["text"], answer["raw"]["continues"]
        return text, talk.dialogue.tokens(text), continues
    said = answer["observation"]
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    return "\n".join(message["content"] for message in messages), *talk.add(messages)


def first_messages(own: Sequence[Message], opened: dict[str, Any]) -> list[Message]:
    """A task's own, or with the environment's text behind or in its place, or the environment's."""
    given, more = opened.get("prompt"), opened.get("more")
    if more:
        return [*own[:-1], {**own[-1], "content": own[-1]["content"] + more}]
    if given is None:
        return list(own)
    if isinstance(given, str):
        system = [message for message in own if message["role"] == "system"]
        return [*system, {"role": "user", "content": given}]
    return list(given)

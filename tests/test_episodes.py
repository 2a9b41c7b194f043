"""An episode's record, token by token: what was sampled, under which version, and what was said to
the policy in between."""

import asyncio

import pytest
from fakes import task

from unslothrl.actors.episodes import Episode, play
from unslothrl.environments.base import Step
from unslothrl.environments.chat import Chat
from unslothrl.environments.single_turn import SingleTurn
from unslothrl.errors import UserError
from unslothrl.types import Completion, Sampling, seed_of

END = 9  # the token that ends a turn


class Letters:
    """A tokenizer of one character a token; END is "$", the mark of a turn's end."""

    def decode(self, ids, skip_special_tokens, **_):
        return "".join("" if i == END and skip_special_tokens else chr(i) for i in ids)

    def __call__(self, texts, add_special_tokens, verbose=True):
        return {"input_ids": [[END if c == "$" else ord(c) for c in text] for text in texts]}

    def apply_chat_template(self, conversation, tokenize, add_generation_prompt):
        text = "".join(f"<{turn['role'][0]}>{turn['content']}$" for turn in conversation)
        return text + "<a>"


class Script:
    """Replies in turn; keeps the requests."""

    def __init__(self, *replies: str, versions: tuple[int, ...] = (3, 4, 5)):
        self.replies, self.versions, self.requests = list(replies), list(versions), []

    async def draw(self, request):
        self.requests.append(request)
        text = self.replies.pop(0)
        ids = tuple(END if c == "$" else ord(c) for c in text)
        ids = ids[: request.sampling.max_new_tokens]
        reason = "stop" if ids[-1] == END else "length"
        return Completion.drawn(ids, (-0.5,) * len(ids), reason, self.versions.pop(0))


class Echo:
    """Says what it heard, until it hears "bye"."""

    max_turns = 3

    def reset(self, task, seed):
        self.seed = seed

    async def step(self, action):
        await asyncio.sleep(0)
        return Step(action == "bye", f"you: {action}", reward=float(len(action)))


def played(script: Script, environment, most: int = 100):
    episode = Episode("0/1", task("a", (1, 2)), Sampling(1.0, 1.0, 0, most), 77, 5)
    return asyncio.run(play(episode, environment, script.draw, Chat(Letters())))


def test_a_single_turn_is_the_completion_as_it_was_drawn():
    script = Script("hello$")
    episode = played(script, SingleTurn())
    (request,) = script.requests
    assert (request.id, request.prompt_ids, request.seed) == ("0/1", (1, 2), 77)
    assert episode.completion.token_ids == (*map(ord, "hello"), END)
    assert episode.completion.versions == (3,) * 6 and all(episode.completion.sampled)
    assert episode.completion.text == "hello" and episode.replies == ("hello",)


def test_turns_and_observations_in_one_record():
    script = Script("hi$", "bye$")
    episode = played(script, Echo())
    whole, said = "hi$<u>you: hi$<a>bye$", "<u>you: hi$<a>"
    record = episode.completion
    assert record.token_ids == tuple(END if c == "$" else ord(c) for c in whole)
    assert record.sampled == (True,) * 3 + (False,) * len(said) + (True,) * 4
    assert record.versions == (3,) * (3 + len(said)) + (4,) * 4 and record.policy_version == 3
    assert record.logprobs == (-0.5,) * 3 + (0.0,) * len(said) + (-0.5,) * 4
    assert episode.replies == ("hi", "bye") and episode.reward == 5.0
    assert record.text == "hi<u>you: hi<a>bye" and record.finish_reason == "stop"
    second = script.requests[1]
    assert second.prompt_ids == (1, 2, *record.token_ids[: 3 + len(said)])
    assert second.seed == seed_of(77, "turn", 1) and second.id == "0/1/1"
    assert second.sampling.max_new_tokens == 100 - 3 - len(said)


@pytest.mark.parametrize("follows", [False, True])
def test_every_turn_asks_to_follow_the_newest_version_or_none(follows):
    script = Script("a$", "b$", "c$")
    episode = Episode("0/1", task("a"), Sampling(1.0, 1.0, 0, 100), 77, 5, follows_newest=follows)
    asyncio.run(play(episode, Echo(), script.draw, Chat(Letters())))
    assert [request.follows_newest for request in script.requests] == [follows] * 3


def test_the_environment_has_the_groups_seed_and_ends_at_its_last_turn():
    script, environment = Script("a$", "b$", "c$"), Echo()
    episode = played(script, environment)
    assert environment.seed == 5 and len(script.requests) == 3
    assert episode.replies == ("a", "b", "c") and episode.completion.sampled[-1]


def test_the_tokens_of_all_turns_are_bounded():
    reply = played(Script("hello$"), Echo(), most=4).completion
    assert (reply.token_ids, reply.finish_reason) == (tuple(map(ord, "hell")), "length")
    cut = played(Script("hi$"), Echo(), most=8).completion  # in the observation
    assert (len(cut.token_ids), cut.finish_reason, sum(cut.sampled)) == (8, "length", 3)


def test_the_end_of_a_turn_that_was_not_sampled_is_added():
    chat = Chat(Letters())
    said = chat.observation_ids([ord("x")], "y")
    assert said == tuple(END if c == "$" else ord(c) for c in "$<u>y$<a>")
    assert chat.observation_ids([ord("x"), END], "y") == said[1:]
    turns = [{"role": "tool", "content": "1"}, {"role": "user", "content": "2"}]
    assert chat.text(chat.observation_ids([END], turns)) == "<t>1<u>2<a>"


def test_a_template_without_the_reply_is_refused():
    class Forgetful(Letters):
        def apply_chat_template(self, conversation, **_):
            return "<a>"

    with pytest.raises(UserError, match="does not write a reply as it is"):
        Chat(Forgetful()).observation_ids([END], "y")

    class Refusing(Letters):
        def apply_chat_template(self, conversation, **_):
            raise ValueError("roles must alternate")

    with pytest.raises(UserError, match="refuses turns of user after a reply"):
        Chat(Refusing()).observation_ids([END], "y")

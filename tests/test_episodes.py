"""An episode's record, token by token. Its environment has a process, the replies are scripted."""

import asyncio

import pytest
from environment_files import ECHO, END, Script, asked, ids_of, play_with, tokenizer, written

from unslothrl.actors.episodes import Rules, complete
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.environments.host import Setup
from unslothrl.records import Request, Sampling, seed_of

pytestmark = pytest.mark.real

SAID = "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def echo(tmp_path_factory) -> Setup:
    return Setup(written(tmp_path_factory.mktemp("echo"), ECHO), "Echo")


def test_a_single_turn_is_the_completion_as_it_was_drawn():
    script = Script("hello$")
    first = Request("0/1", asked("?").prompt_ids, 77, Sampling(1.0, 1.0, 0, 100))
    played = asyncio.run(complete(first, script.draw, TemplateDialogue(tokenizer())))
    (request,) = script.requests
    assert (request.id, request.prompt_ids, request.seed) == ("0/1", asked("?").prompt_ids, 77)
    assert tuple(played.completion.token_ids) == (*ids_of("hello"), END)
    assert tuple(played.completion.versions) == (3,) * 6 and all(played.completion.sampled)
    assert played.completion.text == "hello" and played.replies == ("hello",)
    assert played.completion.transcript is None


def test_turns_and_observations_in_one_record(echo):
    script = Script("hi$", "bye$")
    played = play_with(echo, script)
    said = ids_of(SAID.format("you: hi 5"))[1:]  # the end was sampled
    first, second = (*ids_of("hi"), END), (*ids_of("bye"), END)
    record = played.completion
    assert tuple(record.token_ids) == first + said + second
    assert tuple(record.sampled) == (True,) * 3 + (False,) * len(said) + (True,) * 4
    assert tuple(record.versions) == (3,) * (3 + len(said)) + (4,) * 4
    assert record.policy_version == 3
    assert tuple(record.logprobs) == (-0.5,) * 3 + (0.0,) * len(said) + (-0.5,) * 4
    assert played.replies == ("hi", "bye") and played.reward == 5.0
    assert record.text == "hi\nyou: hi 5\nbye" and record.finish_reason == "stop"
    request = script.requests[1]
    assert request.prompt_ids == asked("hello").prompt_ids + first + said
    assert request.seed == seed_of(77, "turn", 1) and request.id == "0/1/1"
    assert request.sampling.max_new_tokens == 100
    turns = [(turn.observation, turn.reward) for turn in record.transcript.turns]
    assert turns == [("you: hi 5", 2.0), ("", 3.0)]
    assert record.sequences(asked("hello")) == [(asked("hello").prompt_ids, record)]


@pytest.mark.parametrize("follows", [False, True])
def test_every_turn_asks_to_follow_the_newest_version_or_none(follows, echo):
    script = Script("a$", "b$", "c$")
    play_with(echo, script, follows_newest=follows)
    assert [request.follows_newest for request in script.requests] == [follows] * 3


@pytest.mark.parametrize(("most", "turns"), [(0, 3), (2, 2), (1, 1)])
def test_the_run_or_the_environment_says_how_many_turns_there_are(most, turns, echo):
    script = Script("a$", "b$", "c$", "d$")
    played = play_with(echo, script, rules=Rules(max_turns=most))
    assert len(script.requests) == len(played.replies) == turns
    assert played.completion.sampled[-1] and played.reward == turns


def test_the_tokens_of_a_turn_and_of_all_turns_are_bounded(echo):
    cut = play_with(echo, Script("hello$"), turn=4).completion
    assert (tuple(cut.token_ids), cut.finish_reason) == (ids_of("hell"), "length")
    script = Script("hi$", "bye$")
    said = len(ids_of(SAID.format("you: hi 5"))) - 1
    in_reply = play_with(echo, script, most=3 + said + 2).completion
    assert (len(in_reply.token_ids), in_reply.finish_reason) == (3 + said + 2, "length")
    assert script.requests[1].sampling.max_new_tokens == 2
    observed = play_with(echo, Script("hi$"), most=8).completion
    assert (len(observed.token_ids), observed.finish_reason) == (8, "length")
    assert sum(observed.sampled) == 3


def test_a_sequence_fits_into_the_context(echo):
    context = len(asked("hello").prompt_ids) + 60
    script = Script("hi$", "a long reply$")
    played = play_with(echo, script, rules=Rules(context=context))
    second = script.requests[1]
    assert second.sampling.max_new_tokens == context - len(second.prompt_ids)
    assert len(played.completion.token_ids) <= 60


PROMPTS = """
class Prompts:
    def __init__(self, given=None): self.given = given
    def reset(self, task): return self.given
    def step(self, action): return "", 0.0, True
"""
SYSTEM = ("system", "Be brief.")


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        (None, "system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?"),
        ("3+3?", "system\nBe brief.<|im_end|>\n<|im_start|>user\n3+3?"),
        ([{"role": "user", "content": "4+4?"}], "user\n4+4?"),
    ],
)
def test_an_environment_may_give_the_prompt(given, prompt, tmp_path):
    """A text is the user's turn under the task's system prompt; messages are all that there is."""
    setup = Setup(written(tmp_path, PROMPTS), "Prompts", {"given": given})
    script, of = Script("4$"), asked("2+2?", (SYSTEM, ("user", "2+2?")))
    played = play_with(setup, script, of=of)
    expected = f"<|im_start|>{prompt}<|im_end|>\n<|im_start|>assistant\n"
    transcript, ids = played.completion.transcript, ids_of(expected)
    found = transcript.prompt, transcript.prompt_ids
    assert found == (("", None) if given is None else (expected, ids))
    (sequence,) = played.completion.sequences(of)
    assert sequence[0] == script.requests[0].prompt_ids == ids


def test_a_prompt_that_is_too_long_loses_the_episode(tmp_path):
    setup = Setup(written(tmp_path, PROMPTS), "Prompts", {"given": "x" * 100})
    played = play_with(setup, Script(), rules=Rules(max_prompt_tokens=50))
    assert played.lost.endswith("--max_prompt_tokens is 50") and played.completion.is_lost
    assert tuple(played.completion.token_ids) == ()


@pytest.mark.parametrize(("how", "earned"), [("sum", 6.0), ("last", 3.0), ("discounted", 2.75)])
def test_an_episode_earns_what_the_run_says(how, earned, echo):
    rules = Rules(turn_rewards=how, discount=0.5)  # of 1, 2 and 3
    assert play_with(echo, Script("a$", "bb$", "bye$"), rules=rules).reward == earned

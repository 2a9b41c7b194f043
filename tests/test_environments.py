"""Environments as users have them, in files, over their real host: each form that is known, tools,
and what a file may have or lack. What an episode must come to is worked out by hand."""

import json
import sys

import pytest
from environment_files import Script, asked, ids_of, play_with, written

from unslothrl import environments
from unslothrl.actors.scoring import group_of
from unslothrl.environments.host import Host, Setup
from unslothrl.errors import UserError
from unslothrl.records import Call
from unslothrl.rewards.scorer import Scored

pytestmark = pytest.mark.real


def call(tool: str, **arguments) -> str:
    """As the policy writes a call where the template has no form of its own."""
    said = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


STEP = '''
from unslothrl.environments.base import Step

class Guess:
    """Guess a number of the row's."""

    max_turns = 4

    def reset(self, task, seed):
        self.secret = int(task.answer)
        return f"Guess my number. Hint: level {task.extra['level']}."

    async def step(self, action):
        guess = int(action)
        if guess == self.secret:
            return Step(True, reward=1.0, score=1.0)
        return Step(False, "higher" if guess < self.secret else "lower", reward=-0.1, score=0.0)
'''


def test_ours(tmp_path):
    setup = Setup(written(tmp_path, STEP), "Guess")
    played = play_with(setup, Script("3$", "9$", "7$"), of=asked("?"))
    turns = played.completion.transcript.turns
    assert [(turn.reply, turn.observation, turn.reward) for turn in turns] == [
        ("3", "higher", -0.1), ("9", "lower", -0.1), ("7", "", 1.0),
    ]  # fmt: skip
    assert (played.reward, played.score) == (pytest.approx(0.8), 1.0)
    transcript = played.completion.transcript
    assert transcript.prompt.startswith("<|im_start|>user\nGuess my number")
    assert transcript.question == "Guess my number. Hint: level 2."


BONUS = """
from unslothrl.environments.base import Step

class Bonus:
    def __init__(self, rewards):
        self.rewards = [float(reward) for reward in rewards.split("/")]

    def reset(self, task, seed):
        return "Go on."

    async def step(self, action):
        reward = self.rewards.pop(0)
        return Step(not self.rewards, "and?", reward=reward)
"""


@pytest.mark.parametrize(
    ("rewards", "total", "correct"),
    [
        ("0.2", 0.2, 0.0),  # for the form of a wrong answer
        ("0.5/0.5/0.2", 1.2, 0.0),
        ("1.0/0.0", 1.0, 0.0),
        ("0.2/1.0", 1.2, 1.0),
        ("-0.1/-0.1/0.9999999", 0.7999999, 1.0),  # a weighted sum of floats
    ],
)
def test_a_bonus_does_not_count_as_correct(rewards, total, correct, tmp_path):
    setup = Setup(written(tmp_path, BONUS), "Bonus", options={"rewards": rewards})
    played = play_with(setup, Script(*["x$"] * 3), of=asked("?"))
    group = group_of(asked("?"), [played], Scored({}, [0.0], [0.0]), slice(0, 1), True)
    assert group.totals == (pytest.approx(total),) and group.scores == (correct,)
    judged = Scored({"accuracy": [0.0]}, [0.0], [0.0])  # the reward says what is correct
    assert group_of(asked("?"), [played], judged, slice(0, 1), True).scores == (0.0,)


SHARED = '''
import os

class Shared:
    """Loads something once, and counts what an episode that is cut off has earned."""

    max_turns = 2

    @classmethod
    def prepare(cls, limit):
        if limit > 9:
            raise ValueError(f"{limit} is too much")
        cls.loaded_by, cls.limit = os.getpid(), limit

    def __init__(self, limit):
        self.turns = 0

    def reset(self, task, seed):
        return f"{self.limit} {self.loaded_by == os.getppid()}"

    async def step(self, action):
        self.turns += 1
        return "go on", 0.25, False

    async def finish(self):
        return float(self.turns)
'''


def test_what_is_prepared_is_shared_and_a_cut_off_episode_is_finished(tmp_path):
    setup = Setup(written(tmp_path, SHARED), "Shared", {"limit": 3})
    played = play_with(setup, Script("a$", "b$"), of=asked("?"))
    assert played.completion.transcript.prompt.startswith("<|im_start|>user\n3 True<")
    assert [turn.reward for turn in played.completion.transcript.turns] == [0.25, 2.25]
    assert played.reward == 2.5
    cut_off = play_with(setup, Script("a$", "bbbb"), of=asked("?"), turn=3)
    assert [turn.reward for turn in cut_off.completion.transcript.turns] == [0.25, 1.0]


def test_what_cannot_be_prepared_is_refused_at_the_start(tmp_path):
    host = Host(Setup(written(tmp_path, SHARED), "Shared", {"limit": 10}))
    with pytest.raises(UserError, match=r"cannot be loaded \(ValueError: 10 is too much"):
        host.start()


GYMNASIUM = '''
import random

class Counter:
    """In Gymnasium's form, over texts."""

    def __init__(self, target=3):
        self.target = target

    def reset(self, seed=None, options=None):
        self.count = random.Random(seed).randrange(2)
        return f"Count to {self.target} from {self.count}.", {"count": self.count}

    def step(self, action):
        self.count += 1
        right = action == str(self.count)
        over = self.count == self.target
        return f"now {self.count}", float(right), over, not right, {"score": float(right and over)}

    def close(self):
        pass
'''


def test_gymnasiums_form(tmp_path):
    setup = Setup(written(tmp_path, GYMNASIUM), "Counter", {"target": 2})
    played = play_with(setup, Script("2$"), seed=1)  # which draws 0
    assert (played.reward, played.score, len(played.replies)) == (0.0, 0.0, 1)  # cut off
    played = play_with(setup, Script("1$", "2$"), seed=1)
    assert (played.reward, played.score) == (2.0, 1.0)
    prompts = [
        play_with(setup, Script("x$"), seed=seed).completion.transcript.prompt for seed in range(8)
    ]
    assert len(set(prompts)) == 2  # the seed says where it begins


TRL = '''
class Increment:
    """In the form of TRL's documentation: public methods are tools."""

    def reset(self, **kwargs) -> str | None:
        self.counter, self.level = 0, kwargs["level"]
        return f" Begin at level {self.level}."

    def increment(self, step: int) -> int:
        """
        Increments the counter.

        Args:
            step: How much is added.

        Returns:
            The value of the counter.
        """
        self.counter += step
        return self.counter

    def _hidden(self):
        raise AssertionError

    def get_reward(self) -> float:
        return 1.0 if self.counter == 5 else 0.0
'''


def test_trls_form(tmp_path):
    """Calls until a turn has none; then the environment's own reward."""
    setup = Setup(written(tmp_path, TRL), "Increment")
    both = call("increment", step=1) + call("increment", step=1)
    script = Script(call("increment", step=3) + "$", both + "$", "done$")
    played = play_with(setup, script, turn=400, most=4000, of=asked("Count to 5."))
    turns = played.completion.transcript.turns
    assert [turn.observation for turn in turns] == ["3", "4\n5", ""]
    assert [turn.calls for turn in turns] == [1, 2, 0]
    assert played.reward == 1.0
    prompt = played.completion.transcript.prompt
    assert "Count to 5. Begin at level 2." in prompt and '"increment"' in prompt
    assert "_hidden" not in prompt and "get_reward" not in prompt
    cut = play_with(setup, Script(call("increment", step=5) + "$", "so$"), turn=100, most=200)
    assert cut.reward == 1.0  # also where the tokens end it


RL2 = '''
async def step(state, action, extra_info):
    """In RL2's form."""
    answer = {"next_state": None, "reward": 0.0, "score": 0.0, "done": False,
              "extra_info": extra_info}
    if action.startswith("search"):
        answer["next_state"] = state + action + "\\nfound: 7\\n"
        extra_info["searched"] = extra_info.get("searched", 0) + 1
    elif action.startswith("again"):
        answer["next_state"] = "a new start "
    else:
        answer["reward"] = float(action == extra_info["answer"]) + extra_info["searched"]
        answer["score"], answer["done"] = float(action == extra_info["answer"]), True
    return answer
'''


def test_rl2s_form(tmp_path):
    """A next state that goes on is one sequence; another one is a sequence of its own."""
    setup = Setup(written(tmp_path, RL2), "step")
    of = asked("Who?")
    script = Script("search x", "search y", "7")
    for number in range(3):  # sampled stops, without a token for them
        script.replies[number] += "$"
    played = play_with(setup, script, of=of)
    assert (played.reward, played.score) == (3.0, 1.0)
    found = ids_of("\nfound: 7\n")
    replies = [(*ids_of(text), 2) for text in ("search x", "search y", "7")]
    assert (
        tuple(played.completion.token_ids) == replies[0] + found + replies[1] + found + replies[2]
    )
    anew = play_with(setup, Script("search x$", "again$", "7$"), of=of)
    (first_prompt, first), (second_prompt, second) = anew.completion.sequences(of)
    assert first_prompt == of.prompt_ids and second_prompt == ids_of("a new start ")
    assert tuple(first.token_ids) == replies[0] + found + (*ids_of("again"), 2)
    assert tuple(second.token_ids) == replies[2] and tuple(second.sampled) == (True, True)
    assert sum(anew.completion.version_counts.values()) == 9 + 6 + 2


TOOLS = '''
import asyncio

def multiply(a: int, b: int) -> int:
    """
    Multiplies two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b

async def look_up(name: str) -> dict:
    """
    Looks a name up.

    Args:
        name: Whose.
    """
    await asyncio.sleep(0)
    if name == "nobody":
        raise KeyError(name)
    return {"name": name, "age": 7}

def _not_a_tool():
    raise AssertionError
'''


def test_plain_functions_are_tools(tmp_path):
    """Errors go back to the policy and are counted; a bound on calls."""
    setup = Setup(tools=(written(tmp_path, TOOLS),), max_calls=3)
    replies = [
        call("multiply", a=6, b=7) + call("look_up", name="me"),
        call("look_up", name="nobody"),
        call("divide", a=1),
        call("multiply", a=1),
        "<tool_call>\n{not json}\n</tool_call>",
        call("multiply", a=1, b=1),
        "42",
    ]
    script = Script(*(reply + "$" for reply in replies))
    played = play_with(setup, script, most=4000, turn=400, of=asked("6 times 7?"))
    turns = played.completion.transcript.turns
    said = [turn.observation for turn in turns]
    assert said[0] == '42\n{"name": "me", "age": 7}'
    assert said[1] == "error: KeyError: 'nobody'"
    assert said[2] == "error: there is no tool 'divide'; there are: multiply, look_up"
    assert said[3] == "error: no more calls: 3 were made"
    assert said[4].startswith("error: ") and said[5] == said[3]
    assert [(turn.calls, turn.failed_calls) for turn in turns] == [
        (2, 0), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (0, 0),
    ]  # fmt: skip
    assert turns[0].tool_calls == (
        Call("multiply", '{"a": 6, "b": 7}'), Call("look_up", '{"name": "me"}'),
    )  # fmt: skip
    (unreadable,) = turns[4].tool_calls
    assert unreadable.arguments == "" and said[4] == f"error: {unreadable.error}"
    assert turns[-1].tool_calls == () and played.completion.transcript.question == ""
    assert played.replies[-1] == "42" and played.reward == 0.0 and not played.lost


def test_a_wrong_argument_is_the_policys_to_mend(tmp_path):
    setup = Setup(tools=(written(tmp_path, TOOLS),))
    script = Script(call("multiply", a=1) + "$", "?$")
    played = play_with(setup, script, most=1000, turn=400)
    (turn, _) = played.completion.transcript.turns
    assert turn.observation == "error: multiply: missing a required argument: 'b'"


@pytest.mark.parametrize(
    ("source", "name", "options", "why"),
    [
        ("x = 1/0", "E", {}, "ZeroDivisionError: division by zero (mine.py line 1)"),
        ("E = 3", "E", {}, "the file defines no E"),
        ("class E: ...", "E", {}, "E lacks reset"),
        ("class E:\n def reset(self, task): ...", "E", {"a": 1}, "unexpected keyword argument 'a'"),
        ("import nowhere", "E", {}, "No module named 'nowhere'"),
        ("raise SystemExit(3)", "E", {}, "SystemExit: 3"),
        ("import os; os._exit(0)", "E", {}, "its process has ended"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_a_line(source, name, options, why, tmp_path):
    host = Host(Setup(written(tmp_path, source), name, options))
    with pytest.raises(UserError) as refused:
        host.start()
    said = str(refused.value)
    assert why in said and "\n" not in said and said.startswith("environment ")


def test_a_tool_without_a_docstring_is_refused(tmp_path):
    host = Host(Setup(tools=(written(tmp_path, "def f(a: int): return a"),)))
    with pytest.raises(UserError, match=r"tools .*mine.py cannot be loaded .*docstring"):
        host.start()


def test_a_python_that_is_none_is_refused(tmp_path):
    for python, why in ((tmp_path / "none", "No such file"), ("/bin/true", "cannot be loaded")):
        host = Host(Setup(written(tmp_path, STEP), "Guess", python=str(python)))
        with pytest.raises(UserError, match=why):
            host.start()


def test_another_python_needs_none_of_our_packages(tmp_path):
    """With the standard library alone, and without this package on its path."""
    bare = written(tmp_path, f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', "python")
    (tmp_path / "python").chmod(0o755)
    setup = Setup(written(tmp_path, STEP), "Guess", python=bare)
    played = play_with(setup, Script("7$"), of=asked("?"))
    assert (played.reward, played.lost) == (1.0, "")


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        (
            ["a=1", "b=two", "c=[1]", "d=", "e=x=y"],
            {"a": 1, "b": "two", "c": [1], "d": "", "e": "x=y"},
        ),
        ([], {}),
    ],
)
def test_options_are_json_or_texts(texts, options):
    assert environments.options_of(texts) == options


@pytest.mark.parametrize("text", ["a", "=1", "a b=1", "1a=2"])
def test_options_that_are_none_are_refused(text):
    with pytest.raises(UserError, match="write KEY=VALUE"):
        environments.options_of([text])


WRAPS = '''
import asyncio

class Client:
    """Of a service: knows only `async`."""

    async def ask(self, what):
        await asyncio.sleep(0)
        return what.upper()

async def _count(ticks):
    while True:
        ticks.append(0)
        await asyncio.sleep(0.001)

class Wraps:
    max_turns = 2

    def reset(self, task, seed):
        return asyncio.run(Client().ask("begin"))

    def step(self, action):
        return asyncio.run(Client().ask(action)), 0.5, False

    def finish(self):
        return float(asyncio.run(Client().ask("1")))

class Older(Wraps):
    def reset(self, task, seed):
        return asyncio.get_event_loop().run_until_complete(Client().ask("begin"))

class Both:
    """What was begun by one call is there in the next, between them too."""

    async def reset(self, task, seed):
        self.ticks = []
        self.task = asyncio.create_task(_count(self.ticks))

    def step(self, action):
        self.before = len(self.ticks)
        return self.ask()

    async def ask(self):
        await asyncio.sleep(0.01)
        assert not self.task.done() and len(self.ticks) > self.before
        return await Client().ask("x"), 1.0, True

def shout(text: str) -> str:
    """
    Shouts.

    Args:
        text: What.
    """
    return asyncio.run(Client().ask(text))
'''


def test_synchronous_code_may_run_a_loop_of_its_own(tmp_path):
    """And asynchronous code has one that lasts for the episode."""
    file = written(tmp_path, WRAPS)
    for name in ("Wraps", "Older"):
        played = play_with(Setup(file, name), Script("a$", "b$"), of=asked("?"))
        assert not played.lost and played.completion.transcript.question == "BEGIN"
        assert [turn.observation for turn in played.completion.transcript.turns] == ["A", ""]
        assert played.reward == 2.0
    played = play_with(Setup(file, "Both"), Script("a$"), of=asked("?"))
    assert (played.lost, played.reward) == ("", 1.0)
    script = Script(call("shout", text="a") + "$", "done$")
    played = play_with(Setup(tools=(file,)), script, of=asked("?"), most=4000, turn=400)
    assert played.completion.transcript.turns[0].observation == "A"


RL2_DONE = "async def step(state, action, extra_info): return {'done': True}\n"
TOOL = 'def now() -> int:\n    """\n    The time.\n    """\n    return 7\n'
CLASS = """
import functools, json
{before}
class E:
    {part}

    def reset(self, {seed}):
        return f"seed {{{said}}}"

    async def step(self, action):
        return {returned}
"""


def source(
    part: str = "",
    *,
    before: str = "",
    seed: str = "task",
    said: str = "0",
    returned: str = "'on', 0.0, False",
) -> str:
    return CLASS.format(part=part, before=before, seed=seed, said=said, returned=returned)


def played(tmp_path, text: str, turns: int = 12, **of):
    setup = Setup(written(tmp_path, text), "E", **of)
    return play_with(setup, Script(*["x$"] * turns), of=asked("?"), most=5000)


def refused(setup: Setup) -> str:
    with pytest.raises(UserError) as error:
        Host(setup).start()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_would_have_no_effect_is_refused(tmp_path):
    empty = written(tmp_path, "from os.path import join\ndef _hidden(): ...\n", "empty.py")
    tool, rl2 = written(tmp_path, TOOL, "tool.py"), written(tmp_path, RL2_DONE, "rl2.py")
    assert "empty.py defines no function that is a tool" in refused(Setup(tools=(empty,)))
    for setup in (Setup(rl2, "step", tools=(tool,)), Setup(rl2, "step", {"nonsense": 3})):
        assert "takes no tools and no environment_options" in refused(setup)


@pytest.mark.parametrize(
    ("most", "turns"),
    [("3", 3), ("1.0", 1), ("numpy.int64(2)", 2), ("numpy.float32(2)", 2), ("None", 10)],
)
def test_the_turns_are_a_whole_number_of_any_kind(most, turns, tmp_path):
    text = source(f"max_turns = {most}", before="import numpy")
    assert len(played(tmp_path, text).replies) == turns


@pytest.mark.parametrize("most", ["2.5", "0", "-1", "'3'", "True", "float('inf')", "[3]"])
def test_other_turns_lose_the_episode(most, tmp_path):
    lost = played(tmp_path, source(f"max_turns = {most}")).lost
    assert lost.startswith("its max_turns is ") and "give a whole number from 1 on" in lost


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("None", "its tools are None"),
        ("{'now': len}", "its tools are a value of type dict"),
        ("[functools.partial(print, 1)]", "its tools hold a value of type partial"),
        ("[None]", "its tools hold None"),
        ("[{'type': 'function'}]", "its tools hold a value of type dict"),
    ],
)
def test_tools_that_are_none_are_named(value, why, tmp_path):
    lost = played(tmp_path, source(f"tools = {value}")).lost
    assert lost == f"{why}: give a list of functions and methods, each with types and a docstring"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("task", "0"),
        ("task, seed", "seed"),
        ("task, number", "number"),
        ("task, *, seed", "seed"),
        ("task, *, seed=3", "seed"),
        ("task, **kw", "kw['seed']"),
        ("task, seed, **kw", "seed"),
        ("task, *args", "args[0]"),
    ],
)
def test_reset_takes_the_seed_as_it_likes(parameters, said, tmp_path):
    of = played(tmp_path, source(seed=parameters, said=said))
    assert not of.lost
    assert of.completion.transcript.question == f"seed {0 if said == '0' else 5}"


def test_an_observation_without_a_message(tmp_path):
    """Nobody misses it where the episode is over."""
    for empty in ("[]", "()"):
        over = played(tmp_path, source(returned=f"{empty}, 1.0, True"))
        assert (over.lost, over.reward) == ("", 1.0)
        lost = played(tmp_path, source(returned=f"{empty}, 1.0, False")).lost
        assert lost == "an observation has no message: give a text, or messages"

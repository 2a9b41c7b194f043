"""Environments as users have them, in files, over their real host: each form that is known, tools,
and what a file may have or lack. What an episode must come to is worked out by hand."""

import sys
from dataclasses import replace

import pytest
from environment_files import Script, asked, call, ids_of, observed, play_with, tool, written

from unslothrl import environments
from unslothrl.actors.scoring import group_of
from unslothrl.cluster.build import scorer_of
from unslothrl.config.options import Config
from unslothrl.environments.host import Host, Setup
from unslothrl.errors import UserError
from unslothrl.records import Call
from unslothrl.rewards.reward import OVERLONG
from unslothrl.rewards.scorer import Scored, Scorer

pytestmark = pytest.mark.real

STEP = """
from unslothrl.environments.base import Step

class Guess:
    max_turns = 4

    def reset(self, task, seed):
        self.secret = int(task.answer)
        return f"Guess my number. Hint: level {task.extra['level']}."

    async def step(self, action):
        guess = int(action)
        if guess == self.secret:
            return Step(True, reward=1.0, score=1.0)
        return Step(False, "higher" if guess < self.secret else "lower", reward=-0.1, score=0.0)
"""


def test_ours(tmp_path):
    setup = Setup(written(tmp_path, STEP), "Guess")
    played = play_with(setup, Script("3$", "9$", "7$"), of=asked("?"))
    transcript = played.completion.transcript
    assert [(turn.reply, turn.observation, turn.reward) for turn in transcript.turns] == [
        ("3", "higher", -0.1), ("9", "lower", -0.1), ("7", "", 1.0),
    ]  # fmt: skip
    assert (played.reward, played.score) == (pytest.approx(0.8), 1.0)
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
    punished = Scored({OVERLONG: [0.0]}, [0.0], [0.0])  # which says nothing of that
    assert group_of(asked("?"), [played], punished, slice(0, 1), True).scores == (correct,)


def test_a_whole_episode_is_as_long_as_all_its_sequences_and_is_limited_as_such(tmp_path):
    setup = Setup(written(tmp_path, BONUS), "Bonus", options={"rewards": "0.2/1.0"})
    done = play_with(setup, Script(*["x$"] * 3), of=asked("?")).completion
    before = replace(done.transcript, earlier=(((1,), done),))
    scorer = Scorer((), lambda length: -float(length), 1.0, False)
    found = scorer.score([(asked("?"), done), (asked("?"), replace(done, transcript=before))])
    assert found.rewards[OVERLONG] == [-len(done.token_ids), -2 * len(done.token_ids)]
    config = replace(Config(), environment="e.py:E", overlong_cache=64, max_new_tokens=512)
    for given, limit in ((4096, 4096), (None, 512)):
        punish = scorer_of(replace(config, max_episode_tokens=given)).punish
        assert (punish(limit - 64), punish(limit)) == (0, -1)


SHARED = """
import os

class Shared:
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
"""


def test_what_is_prepared_is_shared_and_a_cut_off_episode_is_finished(tmp_path):
    setup = Setup(written(tmp_path, SHARED), "Shared", {"limit": 3})
    played = play_with(setup, Script("a$", "b$"), of=asked("?"))
    assert played.completion.transcript.prompt.startswith("<|im_start|>user\n3 True<")
    assert [turn.reward for turn in played.completion.transcript.turns] == [0.25, 2.25]
    assert played.reward == 2.5
    cut_off = play_with(setup, Script("a$", "bbbb"), of=asked("?"), turn=3)
    assert [turn.reward for turn in cut_off.completion.transcript.turns] == [0.25, 1.0]


GYMNASIUM = """
import random

class Counter:
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

    def close(self): ...
"""


def test_gymnasiums_form(tmp_path):
    setup = Setup(written(tmp_path, GYMNASIUM), "Counter", {"target": 2})
    played = play_with(setup, Script("2$"), seed=1)  # which draws 0
    assert (played.reward, played.score, len(played.replies)) == (0.0, 0.0, 1)  # cut off
    played = play_with(setup, Script("1$", "2$"), seed=1)
    assert (played.reward, played.score) == (2.0, 1.0)
    begun = [play_with(setup, Script("x$"), seed=seed).completion for seed in range(8)]
    assert len({one.transcript.prompt for one in begun}) == 2  # the seed says where it begins


RL2 = """
async def step(state, action, extra_info):
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
"""


def test_rl2s_form(tmp_path):
    setup, of = Setup(written(tmp_path, RL2), "step"), asked("Who?")
    anew = play_with(setup, Script("search x$", "again$", "7$"), of=of)
    assert (anew.reward, anew.score) == (2.0, 1.0)
    search, again, seven = ((*ids_of(text), 2) for text in ("search x", "again", "7"))
    (first_prompt, first), (second_prompt, second) = anew.completion.sequences(of)
    assert first_prompt == of.prompt_ids and second_prompt == ids_of("a new start ")
    assert tuple(first.token_ids) == search + ids_of("\nfound: 7\n") + again
    assert tuple(second.token_ids) == seven and tuple(second.sampled) == (True, True)
    assert sum(anew.completion.version_counts.values()) == 9 + 6 + 2


LOOKS_UP = """await asyncio.sleep(0)
    if name == "nobody":
        raise KeyError(name)
    return {"name": name, "age": 7}"""
TOOLS = (
    "import asyncio\n\n"
    + tool("def multiply(a: int, b: int) -> int", "return a * b")
    + tool("async def look_up(name: str) -> dict", LOOKS_UP)
    + "def _not_a_tool():\n    raise AssertionError\n"
)


def test_plain_functions_are_tools(tmp_path):
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
    (unreadable,) = turns[4].tool_calls
    too_many = "error: no more calls: 3 were made"
    assert [turn.observation for turn in turns] == [
        '42\n{"name": "me", "age": 7}',
        "error: KeyError: 'nobody'",
        "error: there is no tool 'divide'; there are: multiply, look_up",
        too_many,
        f"error: {unreadable.error}",
        too_many,
        "",
    ]
    assert [(turn.calls, turn.failed_calls) for turn in turns] == [(2, 0), *[(1, 1)] * 5, (0, 0)]
    six, me = Call("multiply", '{"a": 6, "b": 7}'), Call("look_up", '{"name": "me"}')
    assert turns[0].tool_calls == (six, me) and unreadable.arguments == ""
    assert turns[-1].tool_calls == () and played.completion.transcript.question == ""
    assert played.replies[-1] == "42" and played.reward == 0.0 and not played.lost


def refused(setup: Setup) -> str:
    with pytest.raises(UserError) as error:
        Host(setup).start()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("source", "options", "why"),
    [
        ("x = 1/0", {}, "ZeroDivisionError: division by zero (mine.py line 1)"),
        ("Shared = 3", {}, "the file defines no class or function Shared"),
        ("class Shared: ...", {}, "Shared lacks reset"),
        ("import nowhere", {}, "No module named 'nowhere'"),
        ("import os; os._exit(0)", {}, "its process has ended"),
        (SHARED, {"limit": 10}, "cannot be loaded (ValueError: 10 is too much"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_a_line(source, options, why, tmp_path):
    said = refused(Setup(written(tmp_path, source), "Shared", options))
    assert why in said and said.startswith("environment ")


def test_a_python_that_is_none_is_refused(tmp_path):
    for python, why in ((tmp_path / "none", "is no program"), ("/bin/true", "cannot be loaded")):
        assert why in refused(Setup(written(tmp_path, STEP), "Guess", python=str(python)))


def test_another_python_needs_none_of_our_packages(tmp_path):
    """With the standard library alone, and without this package on its path."""
    bare = written(tmp_path, f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n', "python")
    (tmp_path / "python").chmod(0o755)
    setup = Setup(written(tmp_path, STEP), "Guess", python=bare)
    played = play_with(setup, Script("7$"), of=asked("?"))
    assert (played.reward, played.lost) == (1.0, "")


def test_options_are_json_or_texts():
    found = environments.options_of(["a=1", "b=two", "c=[1]", "d=", "e=x=y"])
    assert found == {"a": 1, "b": "two", "c": [1], "d": "", "e": "x=y"}
    for text in ("a", "=1", "a b=1"):
        with pytest.raises(UserError, match="write KEY=VALUE"):
            environments.options_of([text])


WRAPS = """
import asyncio

async def ask(what):
    await asyncio.sleep(0)
    return what.upper()

class Wraps:
    max_turns = 2

    def reset(self, task, seed):
        return asyncio.get_event_loop().run_until_complete(ask("begin"))

    def step(self, action):
        return asyncio.run(ask(action)), 0.5, False

    def finish(self):
        return float(asyncio.run(ask("1")))

class Both:
    async def reset(self, task, seed):
        self.loop = asyncio.get_running_loop()

    def step(self, action):
        return self.ask()

    async def ask(self):
        return "", float(self.loop is asyncio.get_running_loop()), True
"""


def test_synchronous_code_may_run_a_loop_of_its_own(tmp_path):
    """And asynchronous code has one that lasts for the episode."""
    file = written(tmp_path, WRAPS)
    played = play_with(Setup(file, "Wraps"), Script("a$", "b$"), of=asked("?"))
    assert not played.lost and played.completion.transcript.question == "BEGIN"
    assert [turn.observation for turn in played.completion.transcript.turns] == ["A", ""]
    assert played.reward == 2.0
    played = play_with(Setup(file, "Both"), Script("a$"), of=asked("?"))
    assert (played.lost, played.reward) == ("", 1.0)


CLASS = """
class E:
    {part}
    def reset(self, {parameters}): return f"seed {{{said}}}"
    def step(self, action): return "on", 0.0, True
"""


def played(tmp_path, part: str = "", parameters: str = "task", said: str = "0"):
    text = CLASS.format(part=part, parameters=parameters, said=said)
    return play_with(Setup(written(tmp_path, text), "E"), Script("x$"), of=asked("?"))


def test_what_would_have_no_effect_is_refused(tmp_path):
    empty = written(tmp_path, "from os.path import join\ndef _hidden(): ...\n", "empty.py")
    tool, rl2 = written(tmp_path, TOOLS, "tool.py"), written(tmp_path, RL2, "rl2.py")
    assert "empty.py defines no function that is a tool" in refused(Setup(tools=(empty,)))
    for setup in (Setup(rl2, "step", tools=(tool,)), Setup(rl2, "step", {"nonsense": 3})):
        assert "takes no tools and no environment_options" in refused(setup)


@pytest.mark.parametrize("most", ["2.5", "0", "True"])
def test_other_turns_lose_the_episode(most, tmp_path):
    lost = played(tmp_path, f"max_turns = {most}").lost
    assert lost.startswith("its max_turns is ") and "give a whole number from 1 on" in lost


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("task", "0"),
        ("task, seed", "seed"),
        ("task, *, seed=3", "seed"),
        ("task, **k", "k['seed']"),
    ],
)
def test_reset_takes_the_seed_as_it_likes(parameters, said, tmp_path):
    of = played(tmp_path, parameters=parameters, said=said)
    assert not of.lost
    assert of.completion.transcript.question == f"seed {0 if said == '0' else 5}"


TYPES = "from typing import Any, Literal\n\n" + tool(
    """def takes(
    n: int = 0, x: float = 0.0, s: str = "", yes: bool = False, many: list[int] = [],
    table: dict[str, float] = {}, unit: Literal["C", "F"] = "C", maybe: int | None = 1,
    either: int | str = 0, pair: tuple[int, str] = (0, ""), anything: Any = 0, none: int = None,
    level: Literal[1, 2] = 1, bare: list = [], lists: list[int] | list[str] = [],
) -> str""",
    "return 'taken'",
)
FIT = [
    {"n": 3, "x": 2, "s": "3", "yes": True, "many": [1, 2], "table": {"a": 1, "b": 0.5}},
    {"x": 2.5, "unit": "F", "maybe": None, "either": "a", "pair": [1, "b"], "anything": [{}]},
    {"either": 3, "anything": None, "none": None, "level": 2, "bare": [1, "a"], "many": []},
    {"maybe": 2, "lists": ["a"]},
]
MISFITS = [  # arguments, what is wrong with one of them
    ({"n": "3"}, "n must be of type integer"),
    ({"n": True}, "n must be of type integer"),
    ({"n": 3.5}, "n must be of type integer"),
    ({"x": "2.5"}, "x must be of type number"),
    ({"s": 3}, "s must be of type string"),
    ({"yes": 1}, "yes must be of type boolean"),
    ({"many": 3}, "many must be of type array"),
    ({"table": 3}, "table must be of type object"),
    ({"unit": "K"}, 'unit must be one of ["C", "F"]'),
    ({"maybe": "x"}, "maybe must be of type integer"),
    ({"either": [1]}, "either must be of type integer or string"),
    ({"lists": 3}, "lists must be of type array"),
    ({"other": 1}, "got an unexpected keyword argument 'other'"),
]


def test_arguments_are_of_the_types_that_the_schema_has(tmp_path):
    setup = Setup(tools=(written(tmp_path, TYPES),))
    calls = [call("takes", **each) for each in (*FIT, *(wrong for wrong, _ in MISFITS))]
    said = []
    for begin in range(0, len(calls), 9):  # an episode has ten turns
        said += observed(setup, *calls[begin : begin + 9])
    assert said[: len(FIT)] == [("taken", 0)] * len(FIT)
    for (observation, failed), (_, why) in zip(said[len(FIT) :], MISFITS, strict=True):
        assert observation.startswith(f"error: takes: {why}") and failed == 1

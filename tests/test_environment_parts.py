"""What an environment's file may have or lack, and what is said of each: its tools, its turns, its
options, the seed."""

import pytest
from environment_files import Script, asked, play_with, written
from few_cases import few

from unslothrl.environments.host import Host, Setup
from unslothrl.errors import UserError

pytestmark = pytest.mark.real

RL2 = "async def step(state, action, extra_info): return {'done': True}\n"
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
    tool, rl2 = written(tmp_path, TOOL, "tool.py"), written(tmp_path, RL2, "rl2.py")
    assert "empty.py defines no function that is a tool" in refused(Setup(tools=(empty,)))
    said = refused(Setup(rl2, "step", tools=(tool,)))
    assert "tools now: step is a function in RL2's form, which takes none: leave them out" in said
    assert "environment_options nonsense: step is" in refused(Setup(rl2, "step", {"nonsense": 3}))


@pytest.mark.parametrize(
    ("most", "turns"),
    few([("3", 3), ("1.0", 1), ("numpy.int64(2)", 2), ("numpy.float32(2)", 2), ("None", 10)], 2),
)
def test_the_turns_are_a_whole_number_of_any_kind(most, turns, tmp_path):
    text = source(f"max_turns = {most}", before="import numpy")
    assert len(played(tmp_path, text).replies) == turns


@pytest.mark.parametrize("most", few(["2.5", "0", "-1", "'3'", "True", "float('inf')", "[3]"]))
def test_other_turns_lose_the_episode(most, tmp_path):
    lost = played(tmp_path, source(f"max_turns = {most}")).lost
    assert lost.startswith("its max_turns is ") and "give a whole number from 1 on" in lost


@pytest.mark.parametrize(
    ("value", "why"),
    few(
        [
            ("None", "its tools are None"),
            ("{'now': len}", "its tools are a value of type dict"),
            ("[functools.partial(print, 1)]", "its tools hold a value of type partial"),
            ("[None]", "its tools hold None"),
            ("[{'type': 'function'}]", "its tools hold a value of type dict"),
        ],
        2,
    ),
)
def test_tools_that_are_none_are_named(value, why, tmp_path):
    lost = played(tmp_path, source(f"tools = {value}")).lost
    assert lost == f"{why}: give a list of functions and methods, each with types and a docstring"


@pytest.mark.parametrize(
    ("parameters", "said"),
    few(
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
        3,
    ),
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

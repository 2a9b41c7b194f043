"""What a policy, an environment, a tool or a data set may write that JSON or UTF-8 lacks: it costs
a call or an episode, never the run."""

import json
import os
from types import SimpleNamespace

import environment_files
import pytest
from environment_files import Script, asked, play_with, written

from unslothrl.actors.episodes import Rules
from unslothrl.dialogue import hand_written
from unslothrl.dialogue.calls import NO_OBJECT
from unslothrl.dialogue.template import TemplateDialogue
from unslothrl.environments.host import Setup
from unslothrl.errors import UserError

pytestmark = pytest.mark.real

TOOLS = '''
def multiply(a: float, b: float) -> float:
    """
    Multiplies two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b
'''


def called(arguments: str, name: str = "multiply") -> str:
    """A turn that is one call, with arguments as they are written."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>$'


@pytest.mark.parametrize("is_text", [False, True])
def test_a_number_that_json_lacks_is_a_call_that_fails(is_text, tmp_path):
    numbers = ("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "[[NaN]]")
    arguments = [f'{{"a": {number}, "b": 4}}' for number in numbers]
    setup = Setup(tools=(written(tmp_path, TOOLS),))
    script = Script(*(called(json.dumps(a) if is_text else a) for a in arguments), "?$")
    played = play_with(setup, script, most=3000, turn=300)
    *turns, _ = played.completion.transcript.turns
    assert not played.lost and len(turns) == len(numbers)
    for turn in turns:
        assert turn.observation == f"error: {NO_OBJECT}"
        assert (turn.calls, turn.failed_calls) == (1, 1)


def test_a_renderer_s_call_has_no_such_number_either():
    attempt = SimpleNamespace(name="f", id="", status="ok", arguments={"a": float("inf")}, raw="")
    assert hand_written.call_of(attempt, "call00000").error == NO_OBJECT


ECHO = """
class Echo:
    def reset(self, task): ...
    def step(self, action): return "", 0.0, True
"""


@pytest.mark.parametrize("value", [object(), 10**5000, {1: {2}}], ids=type)
def test_what_cannot_be_asked_costs_the_episode(value, tmp_path):
    of = asked("?")
    of.extra["strange"] = value
    played = play_with(Setup(written(tmp_path, ECHO), "Echo"), Script("x$"), of=of)
    assert played.lost.startswith("reset cannot be asked (")


def test_a_task_that_is_too_large_costs_the_episode(tmp_path):
    of = asked("?")
    of.extra["long"] = "x" * 2_000_000
    played = play_with(Setup(written(tmp_path, ECHO), "Echo"), Script("x$"), of=of)
    assert played.lost.startswith("reset cannot be asked (2,000,")


def test_what_a_data_set_has_that_json_lacks_is_none(tmp_path):
    of, nan = asked("?"), float("nan")
    of.extra.update(a=nan, b=[1.5, {"c": -float("inf")}], d="x")
    source = """
class Tells:
    def reset(self, task): return str(sorted(task.extra.items()))
    def step(self, action): return "", 0.0, True
"""
    played = play_with(Setup(written(tmp_path, source), "Tells"), Script("x$"), of=of)
    expected = [("a", None), ("b", [1.5, {"c": None}]), ("d", "x"), ("level", 2)]
    assert played.completion.transcript.question == str(expected) and not played.lost


HALF = "\ud83d"  # of a surrogate pair
SAYS = """
from unslothrl.environments.base import ToolError

def says(how: str) -> str:
    '''
    Says half a pair.

    Args:
        how: In which way.
    '''
    if how == "text": return "a\\ud83db"
    if how == "object": return {"a\\udcff": {1: "\\udcffb"}}
    if how == "repr": return Strange()
    if how == "tool error": raise ToolError("a\\ud83db")
    raise ValueError("a\\ud83db")

class Strange:
    def __repr__(self): return "a\\ud83db"

class Says:
    max_turns = 2
    def __init__(self, how="", first=None): self.tools, self.how, self.first = [says], how, first
    def reset(self, task): return self.first
    def step(self, action):
        text = "a\\ud83db"
        if self.how == "raises": raise ValueError(text)
        return [{"role": "user", "content": text}] if self.how == "messages" else text, 0.0, False
"""


@pytest.fixture
def says(tmp_path):
    return written(tmp_path, SAYS)


def test_half_a_pair_that_a_tool_gives_is_replaced(says):
    observations = {
        "text": "a?b",
        "object": '{"a?": {"1": "?b"}}',
        "repr": "a?b",
        "tool error": "a?b",
        "exception": "error: ValueError: a?b",
    }
    script = Script(*(called(f'{{"how": "{how}"}}', "says") for how in observations), "?$")
    played = play_with(Setup(tools=(says,)), script, most=3000, turn=300)
    *turns, _ = played.completion.transcript.turns
    assert [turn.observation for turn in turns] == list(observations.values()) and not played.lost


def test_half_a_pair_that_an_environment_says_is_replaced(says):
    for how in ("text", "messages"):
        played = play_with(Setup(says, "Says", {"how": how}), Script("x$", "y$"), most=2000)
        assert played.completion.transcript.turns[0].observation == "a?b" and not played.lost
    lost = play_with(Setup(says, "Says", {"how": "raises"}), Script("x$"), most=2000)
    assert lost.lost.startswith("ValueError: a?b (mine.py")
    for first in (HALF + "1+1?", [{"role": "user", "content": HALF + "1+1?"}]):
        setup = Setup(says, "Says", {"first": first})
        played = play_with(setup, Script("x$", "y$"), most=2000)
        assert played.completion.transcript.question == "?1+1?" and not played.lost


def test_half_a_pair_in_a_next_state_is_replaced(tmp_path):
    source = """
async def step(state, action, extra_info):
    return {"next_state": state + action + "a\\ud83db", "reward": 0.0, "done": False}
"""
    setup = Setup(written(tmp_path, source), "step")
    played = play_with(setup, Script("x$", "y$", "z$"), rules=Rules(max_turns=3))
    assert [turn.observation for turn in played.completion.transcript.turns] == ["a?b", "a?b", ""]
    assert not played.lost and not played.completion.transcript.earlier


def test_a_file_whose_name_is_no_utf8_is_imported(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.py")
    with open(path, "w") as file:
        file.write(ECHO)
    assert not play_with(Setup(path, "Echo"), Script("x$")).lost


class Fails(TemplateDialogue):
    """Of a template, or a package, that has not thought of a text."""

    def extended(self, *args):
        raise KeyError("no such text")

    def opened(self, messages, tools):
        if messages[0]["content"] == "strange":
            raise KeyError("no such text")
        return super().opened(messages, tools)


def test_a_dialogue_that_fails_on_a_text_costs_the_episode(says, monkeypatch):
    monkeypatch.setattr(environment_files, "TemplateDialogue", Fails)
    for first, turns in ((None, 1), ("strange", 0)):
        setup = Setup(says, "Says", {"first": first})
        played = play_with(setup, Script("x$", "y$"), most=2000)
        assert played.lost == "what it says cannot be read (KeyError: 'no such text')"
        assert len(played.replies) == turns


def test_what_a_template_refuses_of_the_task_is_the_users(tmp_path, monkeypatch):
    """As it is no environment's."""

    class Refuses(TemplateDialogue):
        def opened(self, messages, tools):
            raise UserError("model: its chat template refuses it")

    monkeypatch.setattr(environment_files, "TemplateDialogue", Refuses)
    with pytest.raises(UserError):
        play_with(Setup(written(tmp_path, ECHO), "Echo"), Script("x$"))

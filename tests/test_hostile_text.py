"""What a policy, an environment, a tool or a data set may write that JSON or UTF-8 lacks: it costs
a call or an episode, never the run."""

import json
from types import SimpleNamespace

import pytest
from environment_files import Script, asked, play_with, written

from unslothrl.dialogue import hand_written
from unslothrl.dialogue.calls import NO_OBJECT
from unslothrl.environments.host import Setup

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


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity", "[[NaN]]"])
@pytest.mark.parametrize("is_text", [False, True])
def test_a_number_that_json_lacks_is_a_call_that_fails(number, is_text, tmp_path):
    arguments = f'{{"a": {number}, "b": 4}}'
    setup = Setup(tools=(written(tmp_path, TOOLS),))
    script = Script(called(json.dumps(arguments) if is_text else arguments), "?$")
    played = play_with(setup, script, most=2000, turn=300)
    turn, _ = played.completion.transcript.turns
    assert not played.lost and turn.observation == f"error: {NO_OBJECT}"
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
    assert played.lost.startswith("the task has 2,000,")

"""Functions and methods as tools: which can be none, the schema of each, and wrong arguments."""

import json

import pytest
from environment_files import Script, asked, play_with, written

from unslothrl.environments import forms
from unslothrl.environments.host import Host, Setup
from unslothrl.environments.tool_calls import schema
from unslothrl.errors import UserError

pytestmark = pytest.mark.real


def call(tool: str, **arguments) -> str:
    said = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>$"


def observed(setup: Setup, *calls: str) -> list[tuple[str, int]]:
    """What the calls of one episode have given, and how many have failed."""
    played = play_with(setup, Script(*calls, "x$"), most=60_000, turn=2000, of=asked("?"))
    assert not played.lost
    turns = played.completion.transcript.turns[: len(calls)]
    return [(turn.observation, turn.failed_calls) for turn in turns]


DOCUMENTED = '"""\n    A tool.\n\n    Args:\n        a: One.\n        b: Two.\n    """'


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (f"def g(a: int, *b: int):\n    {DOCUMENTED}", "g has the parameter *b, which no call"),
        (f"def g(a: int, **b: int):\n    {DOCUMENTED}", "g has the parameter **b, which no call"),
        (f"def g(a: int, /, b: int):\n    {DOCUMENTED}", "g has the parameter a, which no call"),
        ("def helper(x): return x", "helper has no schema (Cannot generate JSON schema for helper "
         "because it has no docstring): give it types and a docstring that describes each "
         "argument, or, if it is no tool, a name that begins with _"),
        (f"def g(a, b: int):\n    {DOCUMENTED}", "g has no schema (Argument a is missing a type"),
        (f"def g(c: int):\n    {DOCUMENTED}", "g has no schema ("),
        (f"def g(a: 'Nothing', b: int):\n    {DOCUMENTED}", "g has no schema (name 'Nothing'"),
    ],
)  # fmt: skip
def test_what_is_no_tool_is_refused_in_a_line(source, why, tmp_path):
    """Also as a method in TRL's form."""
    indented = source.replace("\n", "\n    ").replace("(", "(self, ", 1)
    of_class = f"class E:\n    def reset(self): ...\n    {indented}"
    file = written(tmp_path, source)
    for setup in (Setup(tools=(file,)), Setup(written(tmp_path, of_class, "trl.py"), "E")):
        with pytest.raises(UserError) as refused:
            Host(setup).start()
        said = str(refused.value)
        assert f"the tool {why}" in said and "\n" not in said and "chat_template" not in said


STATIC = f"""
class Adds:
    def reset(self): ...

    @staticmethod
    def add(a: int, b: int) -> int:
        {DOCUMENTED}
        return a + b

class Inherits(Adds):
    def times(self, a: int, b: int) -> int:
        {DOCUMENTED}
        return a * b
"""


def test_a_static_method_keeps_its_first_parameter(tmp_path):
    file = written(tmp_path, STATIC)
    for method in (forms.module(file).Adds.add, forms.module(file).Inherits().times):
        assert schema(method)["function"]["parameters"]["required"] == ["a", "b"]
    played = play_with(Setup(file, "Inherits"), Script(call("add", a=2, b=3), "x$"), most=4000)
    assert played.completion.transcript.prompt.count('"required": ["a", "b"]') == 2
    said = observed(Setup(file, "Inherits"), call("add", a=2, b=3), call("times", a=2, b=3))
    assert said == [("5", 0), ("6", 0)]


TYPES = '''
from typing import Any, Literal

def takes(
    n: int = 0, x: float = 0.0, s: str = "", yes: bool = False, many: list[int] = [],
    table: dict[str, float] = {}, unit: Literal["C", "F"] = "C", maybe: int | None = 1,
    either: int | str = 0, pair: tuple[int, str] = (0, ""), anything: Any = 0, none: int = None,
    level: Literal[1, 2] = 1, bare: list = [], lists: list[int] | list[str] = [],
) -> str:
    """
    Takes what it is given.

    Args:
        n: Whole.
        x: A number.
        s: A text.
        yes: Or no.
        many: Whole numbers.
        table: Numbers by name.
        unit: Of two.
        maybe: Or none.
        either: This or that.
        pair: Both.
        anything: At all.
        none: By default.
        level: Of two.
        bare: A list.
        lists: One or the other.
    """
    return "taken"
'''
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
    ({"n": None}, "n must be of type integer"),
    ({"x": "2.5"}, "x must be of type number"),
    ({"x": False}, "x must be of type number"),
    ({"s": 3}, "s must be of type string"),
    ({"yes": 1}, "yes must be of type boolean"),
    ({"many": 3}, "many must be of type array"),
    ({"table": 3}, "table must be of type object"),
    ({"unit": "K"}, 'unit must be one of ["C", "F"]'),
    ({"level": True}, "level must be of type integer"),
    ({"level": 3}, "level must be one of [1, 2]"),
    ({"maybe": "x"}, "maybe must be of type integer"),
    ({"pair": "x"}, "pair must be of type array"),
    ({"either": [1]}, "either must be of type integer or string"),
    ({"bare": "x"}, "bare must be of type object"),
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

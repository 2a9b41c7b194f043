"""The arguments of a call, as the schema of its tool has them."""

import pytest
from environment_files import call, observed, tool, written

from unslothrl.environments.host import Setup

pytestmark = pytest.mark.real

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

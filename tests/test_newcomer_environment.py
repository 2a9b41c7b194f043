"""The environments of docs/environments.md, as a newcomer writes them: run as they stand there."""

from pathlib import Path

import environments_page
import pytest
from environment_files import Script, asked, play_with, written

from unslothrl import environments
from unslothrl.environments.host import Setup
from unslothrl.errors import UserError

pytestmark = pytest.mark.real


def shown(name: str) -> str:
    """The file that the page shows under this name."""
    return environments_page.files()[name]


def test_the_calculator_answers_in_a_second_turn(tmp_path):
    setup = Setup(written(tmp_path, shown("calculator.py"), "calculator.py"), "Calculator")
    played = play_with(setup, Script("What is 2 + 3?$", "5$"), of=asked("2 + 3?"))
    assert [(turn.reply, turn.observation) for turn in played.completion.transcript.turns] == [
        ("What is 2 + 3?", "= 5"), ("5", ""),
    ]  # fmt: skip
    assert played.reward == 0.5 and not played.lost
    assert play_with(setup, Script("no idea$")).reward == 0.0


def test_the_tools_are_called(tmp_path):
    setup = Setup(tools=(written(tmp_path, shown("tools.py"), "tools.py"),))
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'
    played = play_with(setup, Script(f"{call}$", "42$"), most=1500, turn=300)
    assert played.completion.transcript.turns[0].observation == "42"


def test_a_file_in_the_package_is_an_environment_by_its_name(tmp_path, monkeypatch):
    file = written(tmp_path, shown("calculator.py") + "\n\nENVIRONMENT = Calculator\n", "mine.py")
    monkeypatch.setattr(environments, "__path__", [*environments.__path__, str(Path(file).parent)])
    environments.names.cache_clear()
    try:
        assert {"calculator", "mine", "single_turn"} <= set(environments.names())
        environments.check("mine")
    finally:
        environments.names.cache_clear()


def test_what_is_no_environment_is_refused_before_anything_starts():
    for name, why in (("calculater", "not one of"), ("./none.py:Calculator", "no such file")):
        with pytest.raises(UserError, match=why):
            environments.check(name)

"""The environments of docs/environments.md, as a newcomer writes them: run as they stand there."""

from pathlib import Path

import pytest
from environment_files import Script, asked, call, play_with, written
from environments_page import files

from unslothrl import environments
from unslothrl.environments.host import Setup
from unslothrl.errors import UserError

pytestmark = pytest.mark.real


def test_the_calculator_answers_in_a_second_turn(tmp_path):
    setup = Setup(written(tmp_path, files()["calculator.py"], "calculator.py"), "Calculator")
    played = play_with(setup, Script("What is 2 + 3?$", "5$"), of=asked("2 + 3?"))
    assert [(turn.reply, turn.observation) for turn in played.completion.transcript.turns] == [
        ("What is 2 + 3?", "= 5"), ("5", ""),
    ]  # fmt: skip
    assert played.reward == 0.5 and not played.lost
    assert play_with(setup, Script("no idea$")).reward == 0.0


def test_the_tools_are_called(tmp_path):
    setup = Setup(tools=(written(tmp_path, files()["tools.py"], "tools.py"),))
    script = Script(call("multiply", a=6, b=7) + "$", "42$")
    played = play_with(setup, script, most=1500, turn=300)
    assert played.completion.transcript.turns[0].observation == "42"


def test_a_file_in_the_package_is_an_environment_by_its_name(tmp_path, monkeypatch):
    file = written(tmp_path, files()["calculator.py"] + "\nENVIRONMENT = Calculator\n", "mine.py")
    monkeypatch.setattr(environments, "__path__", [*environments.__path__, str(Path(file).parent)])
    monkeypatch.setattr(environments, "names", environments.names.__wrapped__)  # not cached
    assert {"calculator", "mine", "single_turn"} <= set(environments.names())
    environments.check("mine")


def test_what_is_no_environment_is_refused_before_anything_starts():
    for name, why in (("calculater", "not one of"), ("./none.py:Calculator", "no such file")):
        with pytest.raises(UserError, match=why):
            environments.check(name)

"""Completion as a shell asks for it, in the shells that are there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unslothrl.algorithms import objectives
from unslothrl.commands import cli, completion
from unslothrl.config.options import OPTIONS

ROOT = Path(__file__).parents[1]


def found(*words: str) -> list[str]:
    """What may follow, by name."""
    return [value for value, _ in completion.candidates(words, cli.parser().commands)]


def test_commands_options_and_values_are_completed():
    of_one_word = {name for name in cli.parser().commands if " " not in name}
    assert set(found("")) == of_one_word and found("tr") == ["train"]
    assert found("plan", "") == found("data", "") == ["sft", "dpo", "rm"]
    assert found("plan", "d") == ["dpo"] and found("sft", "") == []
    assert found("plan", "sft", "--pack") == ["--packing"]
    assert found("plan", "--pack") == []
    assert "--chosen_column" in found("data", "rm", "--")
    assert found("train", "--num_c") == ["--num_candidates"] == found("--num_c")
    assert found("train", "--num-c") == ["--num_candidates"]
    assert found("--learner", "g") == ["grpo", "gspo"] == found("train", "--learner", "g")
    assert set(found("--learner", "")) == set(objectives.names())
    assert found("--learner=gr") == ["--learner=grpo"]
    assert found("--recipe", "tiny") == ["tiny-cpu"]
    assert found("--reward", "box") == ["boxed"]
    assert found("--model", "e") == ["embedded"] == found("data", "--model", "")
    assert found("eval", "--bas") == ["--base"] and found("eval", "--no_b") == ["--no_base"]
    assert found("--show_completion", "") == ["bash", "zsh", "fish"]


def test_bash_cuts_a_flag_with_its_value_into_three_words():
    assert found("--learner", "=", "gr") == ["grpo"]
    assert found("--learner", "=") == found("--learner", "")


def test_what_is_given_is_not_offered_again_and_files_are_left_to_the_shell():
    assert "--lr" in found("train", "--l") and "--lr" not in found("train", "--lr", "1", "--l")
    assert found("train", "--lr", "") == [] == found("data", "prob")
    assert found("train", "--run_name", "x") == []
    assert found("nosuch", "x") == []


def test_every_option_is_offered():
    flags = found("train", "--")
    assert {f"--{name}" for name in OPTIONS} | {"--help", "--help_all"} <= set(flags)
    assert "--version" in found("--v") and "--version" not in found("train", "--v")


def test_runs_are_offered_the_newest_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert found("--resume", "") == []
    for age, name in enumerate(("new", "old", "no-run")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        if name != "no-run":
            (folder / "config.toml").touch()
        os.utime(folder, (100 - age, 100 - age))
    assert found("--resume", "") == ["runs/new", "runs/old"]
    assert found("eval", "--adapter", "runs/o") == ["runs/old"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("shell", "file"),
    [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", ".config/fish/completions/unslothrl.fish")],
)
def test_installing_twice_is_as_once_and_keeps_what_is_there(home, shell, file, capfd):
    if shell != "fish":
        (home / file).write_text("alias x=y")  # without its line feed
    assert cli.main(["--install_completion", shell]) == 0
    once = (home / file).read_text()
    assert cli.main(["--install-completion", shell]) == 0
    assert (home / file).read_text() == once
    if shell != "fish":
        assert once.startswith("alias x=y\n") and once.count("\n") == 2
    assert str(home / file) in capfd.readouterr().out
    assert cli.main(["--show_completion", shell]) == 0
    assert capfd.readouterr().out == completion.SCRIPTS[shell]


def test_a_home_that_cannot_be_written_is_one_line(home, capfd):
    (home / ".local").write_text("a file")
    assert cli.main(["--install_completion", "bash"]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "--show_completion bash" in err


ASK = {
    "bash": """
        source {script}
        COMP_WORDS=(unslothrl {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _unslothrl unslothrl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        autoload -Uz compinit; compinit -u -D
        _describe() {{ print -l -- "${{(@)found%%:*}}" }}
        source {script}
        words=(unslothrl {words}); CURRENT=${{#words}}
        _unslothrl
    """,
    "fish": """
        source {script}
        complete -C 'unslothrl {words}' | string split -f1 \\t
    """,
}


@pytest.mark.real
@pytest.mark.parametrize("shell", list(ASK))
def test_a_shell_gets_what_may_follow(shell, home):
    """By its own script, from the program as it is installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = home / "unslothrl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m unslothrl "$@"\n')
    program.chmod(0o755)
    script = home / "script"
    script.write_text(completion.SCRIPTS[shell])
    paths = {"PATH": f"{home}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    for words, expected in (("train --num_c", "--num_candidates"), ("--learner grp", "grpo")):
        done = subprocess.run(
            [shell, "-c", ASK[shell].format(script=script, words=words)],
            env={**os.environ, **paths}, capture_output=True, text=True, cwd=home, timeout=60,
        )  # fmt: skip
        assert done.stdout.split() == [expected], done.stderr


def test_an_answer_imports_no_torch():
    code = (
        "import sys; from unslothrl.commands.cli import main; main(['--learner', 'gr']);"
        "print(sorted({'numpy', 'torch', 'ray', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, completion.VARIABLE: "fish"},
    )  # fmt: skip
    assert done.stdout == "grpo\n[]\n", done.stderr

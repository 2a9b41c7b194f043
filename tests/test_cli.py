"""The program as it is started: one line and exit code 2 for every bad input, nothing heavy."""

import io
import re
import sys
import types
from pathlib import Path

import pytest
from python_process import python

from unslothrl.algorithms import objectives
from unslothrl.commands import cli
from unslothrl.commands.flags import COMMANDS, EVERYDAY
from unslothrl.commands.signatures import ALL_COMMANDS
from unslothrl.config.options import OPTIONS
from unslothrl.config.values import RUN
from unslothrl.system.machine import Machine

ROOT = Path(__file__).parents[1]
CPU = Machine(cpus=2, ram_mb=16_000, packages=frozenset({"vllm", "ray"}), online=False)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(Machine, "detect", lambda: CPU)


@pytest.fixture
def runs(monkeypatch):
    """What reached the trainer, in place of training."""
    reached = []
    run = types.SimpleNamespace(run=lambda *arguments: reached.append(arguments) or 0)
    monkeypatch.setitem(sys.modules, "unslothrl.runs.rl", run)
    monkeypatch.setattr("unslothrl.runs.rl", run, raising=False)
    return reached


SPACE = "\0"  # within a word of a line
THIS = __file__.replace(" ", SPACE)
FILE = THIS.removesuffix(".py")
BAD = [
    ("--lr abc", ["lr", "a number", "'abc'", "--lr 2e-05"]),
    ("--lr", ["--lr"]),
    ("--batch_size 2.5", ["batch_size", "a whole number", "'2.5'", "--batch_size 30"]),
    ("--topk 9", ["topk", "num_candidates (8)", "9", "--topk 8"]),
    ("--learner grpo --num-candidates 1", ["num_candidates", "grpo", "1", "--num_candidates 8"]),
    ("--learner grop", ["learner", "gspo, pg", "'grop'", "--learner grpo"]),
    ("--num_candidate 8", ["--num_candidate is not an option", "--num_candidates"]),
    ("--qqq 1", ["--qqq is not an option", "--help"]),
    ("--kl loss", ["--kl is not an option", "set --objective.kl"]),
    ("--Batch_Size 1", ["--Batch_Size is not an option", "set --batch_size"]),
    ("plan --crad 8", ["--crad is not an option", "did you mean --card?"]),
    ("eval --adapter x --max_response_length 1", ["not an option of eval: set --max_new_tokens"]),
    ("train lr=1e-5", ["lr=1e-5", "--NAME VALUE"]),
    ("--ray_port 6379", ["--ray_port is not an option", "ray start --head --port"]),
    ("--no_mask_truncated", ["set --objective.no_mask_truncated"]),
    ("trian --lr 1e-3", ["'trian'", "Did you mean 'train'"]),
    ("--shuffle_rewards=yes", ["--shuffle_rewards", "--no_shuffle_rewards"]),
    ("--dataset one.jsonl two.jsonl", ["two.jsonl", "folder"]),
    ("--dataset one.jsonl --dataset two.jsonl", ["--dataset is given twice", "a folder"]),
    ("--dataset=one.jsonl --dataset two.jsonl", ["--dataset is given twice", "a folder"]),
    ("chat x What is 1", ["What is 1", "between quotes"]),
    ("--reward boxed:0.5", ["'boxed:0.5'", "set --reward boxed=0.5"]),
    ("--reward mine.py", ["mine.py:FUNCTION"]),
    (f"--reward {FILE}:reward", ["set --reward", "test_cli.py:reward"]),
    ("--reward accuracy=0 --reward format=0", ["every weight is 0"]),
    (f"--system_prompt {THIS}", ["is a file", "$(cat"]),
    (f"--lora_save_path {Path(THIS).parent}", ["lora_save_path", "holds other files"]),
    ("--model ./not-there", ["model ", "/not-there", "no such", "check the path"]),
    ("--dataset not-there.jsonl", ["dataset ", "/not-there.jsonl", "no such", "check the path"]),
    ("--adapter .", ["adapter ", "adapter_config.json", "PEFT"]),
    ("--recipe ./", ["it is a folder"]),
    ("--recipe not-there", ["recipe not-there", "FILE.toml", "tiny-cpu"]),
    ("--resume not-there", ["resume", "not-there", "config.toml", "--resume runs/"]),
    ("--max_new_tokens 999999", ["max_new_tokens 999999", "context", "--max_new_tokens"]),
]


@pytest.mark.parametrize(
    ("line", "words"), BAD, ids=[line.replace(str(ROOT), "") for line, _ in BAD]
)
def test_bad_input_is_one_line_and_exit_code_2(line, words, runs, capfd, tmp_path, here):
    assert cli.main([word.replace(SPACE, " ") for word in line.split()]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("unslothrl: ") and err.count("\n") == 1
    assert [word for word in words if word not in err] == []
    assert not runs and not list(tmp_path.iterdir())


def test_flags_recipe_and_command_reach_the_trainer(runs, tmp_path):
    file = tmp_path / "r.toml"
    file.write_text('learner = "grpo"\nlr = 1e-4\n')
    others = "--num-candidates=4 --shuffle-rewards --system_prompt x --lr 1e-3 --run_name a"
    flags = ["--recipe", str(file), *others.split()]
    assert cli.main(flags) == cli.main(["train", *flags]) == 0
    assert cli.main(["dr-grpo", "--lr", "1e-3"]) == 0
    (resolved,), (again,), (named,) = runs
    assert (named.config.learner, named.config.lr) == ("dr_grpo", 1e-3)
    first = resolved.config
    assert resolved.recipe["lr"] == 1e-3 and "model" not in resolved.recipe
    assert (first.learner, first.lr, first.num_candidates) == ("grpo", 1e-3, 4)
    assert first.shuffle_rewards and first.system_prompt == "x" and resolved.notes == ()
    assert first == again.config


def test_the_trainers_exit_code_is_the_programs_and_ctrl_c_is_quiet(runs, monkeypatch, capfd):
    def interrupt(resolved):
        raise KeyboardInterrupt

    for run in (lambda *_: 130, interrupt):
        monkeypatch.setattr(sys.modules["unslothrl.runs.rl"], "run", run)
        assert cli.main(["train"]) == 130
    assert capfd.readouterr() == ("", "\n")  # after the ^C


def test_the_whole_help_names_every_option_with_its_default(monkeypatch, capfd):
    for line, columns in (("plan --help_all", "40"), ("--help-all", "200")):
        monkeypatch.setenv("COLUMNS", columns)
        assert cli.main(line.split()) == 0
        out, err = capfd.readouterr()
        assert err == "" and [n for n in OPTIONS if f"--{RUN.spellings(n)[0]}" not in out] == []
    words = " ".join(out.split())
    assert "one of none, truncated, masked, geometric" in words and "over 0 and at most 1" in words


def test_the_short_help_has_the_everyday_options_and_names_the_whole_one(monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["train", "--help"]) == 0
    out, _ = capfd.readouterr()
    shown = [name for name in OPTIONS if re.search(rf"--{name} ", out)]
    assert set(shown) == set(EVERYDAY) and "--help-all" in out


@pytest.mark.parametrize("command", [name for names in COMMANDS.values() for name in names])
def test_a_commands_help_is_short_and_has_three_examples(command, monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([command, "--help"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) < 80
    assert len(lines[lines.index("Examples:") + 1 :]) == 3


def light(call: str, heavy: set[str], **environment: str) -> str:
    """What the program prints in a process that imports none of these."""
    code = (
        f"import sys; sys.argv = ['unslothrl']; from unslothrl.commands.cli import main\n"
        f"try: {call}\nfinally: assert not {heavy} & set(sys.modules)"
    )
    return python("-c", code, cwd=ROOT, env=environment).stdout


@pytest.mark.real
@pytest.mark.parametrize(("arguments", "more"), [(["--lr", "x"], []), (["--help"], ["numpy"])])
def test_neither_a_wrong_flag_nor_help_costs_a_heavy_import(arguments, more):
    light(f"main({arguments})", {"torch", "ray", "vllm", "transformers", "peft", *more})


@pytest.mark.parametrize("arguments", [[], ["-h"]])
def test_the_programs_help_names_every_command(arguments, capfd, runs):
    assert cli.main(arguments) == 0
    out, err = capfd.readouterr()
    listed = out.partition("Before a run:")[2].splitlines()
    named = {line.split()[0] for line in listed if re.match(r"  [\w-]+  ", line)}
    assert named == {name for name in ALL_COMMANDS if " " not in name}
    assert err == "" and not runs


@pytest.mark.real
def test_data_writes_to_a_terminal_without_unicode(tmp_path, monkeypatch):
    row = '{"problem": "\u00e91+1?", "answer": "2"}\n'
    (tmp_path / "p.jsonl").write_text(row + row.replace("1+1", "2+1"))
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert cli.main(["data", str(tmp_path / "p.jsonl"), "--model", "embedded"]) == 0
    out.seek(0)
    assert re.search(r"\\xe9[12]\+1\?", out.read())  # one is held out


@pytest.mark.real
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("unslothrl train --num_c", ["--num_candidates"]),
        ("unslothrl train --objective.clip_", ["--objective.clip_low", "--objective.clip_high",
                                               "--objective.clip_dual"]),
        ("unslothrl train --learner ", list(objectives.names())),
        ("unslothrl data --model ", ["embedded", "embedded-json"]),
    ],
)  # fmt: skip
def test_commands_options_and_values_are_completed(line, expected):
    """As Click's script for bash asks for it."""
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    asked["_UNSLOTHRL_COMPLETE"] = "bash_complete"
    said = light("main()", {"numpy", "torch", "ray", "transformers"}, **asked)
    assert [each.removeprefix("plain,") for each in said.split()] == expected


def test_what_a_message_quotes_does_not_steer_the_terminal(capsys, tmp_path):
    """A row's columns are the data set's."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"\\u001b]0;owned\\u0007\\u202e": 1, "completion": "x"}\n')
    assert cli.main(["score", str(file), "--reward", "boxed"]) == cli.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable() and "owned" in line


def test_a_package_that_only_a_lock_brings_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as in an environment of pip's alone
    monkeypatch.delitem(sys.modules, "unslothrl.ui.server", raising=False)
    assert cli.main(["ui", "--output_dir", str(tmp_path)]) == cli.FAILED
    said = "unslothrl: uvicorn is not installed: run `unslothrl setup`\n"
    assert capsys.readouterr() == ("", said)


def test_a_current_folder_that_is_gone_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    (tmp_path / "x").rmdir()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # else a program is named, not its path from here
    assert cli.main(["recipes"]) == cli.FAILED
    assert capsys.readouterr() == ("", "unslothrl: No such file or directory\n")

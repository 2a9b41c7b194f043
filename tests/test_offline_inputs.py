"""Bad input of every kind to `unslothrl sft`, `dpo` and `rm`, through the command line."""

import shutil
from pathlib import Path

import pytest
from environment_files import rows_in
from few_cases import few
from test_offline_examples import assistant, user
from test_reward_model import head

from unslothrl import embedded
from unslothrl.commands import cli
from unslothrl.weights import base_model

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("here")]

GOOD = {"prompt": "1?", "completion": "a", "chosen": "a", "rejected": "b"}
TURNS = [user("1?"), user("2?"), assistant("a")]
OUT_OF_ORDER = {"messages": TURNS, "chosen": TURNS, "rejected": [*TURNS[:2], assistant("b")]}
SMALL = "--model embedded --batch_size 2 --max_steps 1 --max_length 120 --run_name x --output_dir"


def eight_rows(end="?"):
    return rows_in(Path(), [{**GOOD, "prompt": f"{n}{end}"} for n in range(8)])


def refused(words, capfd):
    """-> the one line that a command says before it ends with exit code 2, and leaves nothing."""
    before = set(Path("runs").rglob("*"))
    capfd.readouterr()
    assert cli.main(words) == 2
    out, err = capfd.readouterr()
    (line,) = [line for line in err.splitlines() if line.startswith("unslothrl: ")]
    assert "Traceback" not in out + err and set(Path("runs").rglob("*")) == before
    return line


@pytest.mark.parametrize("command", ["sft", "dpo", "rm"])
def test_a_file_of_bad_rows_is_refused_in_one_line(command, capfd):
    long, ordered = {**GOOD, "prompt": "long " * 200}, "a turn of the user after user"
    for row, said in ((OUT_OF_ORDER, ordered), (long, "set --max_length")):
        data = rows_in(Path(), [row, row, row])
        words = [command, "--dataset", data, "--eval_dataset", data, *SMALL.split(), "runs"]
        assert said in refused(words, capfd)


@pytest.mark.parametrize(
    ("command", "row"),
    few([("sft", {"prompt": "1 + 2 =", "completion": " 3"}), ("dpo", GOOD), ("rm", GOOD)]),
)
def test_texts_for_a_base_without_a_chat_template(command, row, capfd):
    shutil.copytree(base_model.prepare("embedded"), "plain")
    Path("plain", "chat_template.jinja").unlink()
    first = next(iter(row))
    data = rows_in(Path(), [{**row, first: f"{n}{row[first]}"} for n in range(8)])
    given = [command, "--dataset", data, "--eval_dataset", data, *SMALL.split(), "runs"]
    assert cli.main([*given, "--model", "./plain"]) == 0
    out, err = capfd.readouterr()
    assert "the model has no chat template" in out and "Traceback" not in out + err
    assert cli.main(["export", "--adapter", "runs/x", "--to", "adapter", "--output", "out"]) == 0

    reason = "is a reward model" if command == "rm" else "no chat template"
    assert reason in refused(["ask", "--adapter", "out", "1?"], capfd)
    words = ["train", "--adapter", "out", "--model", "./plain", "--dataset", data]
    assert reason in refused(words, capfd)


@pytest.mark.parametrize("command", few(["sft", "rm"]))
def test_an_adapter_of_another_base(command, bases, capfd):
    data = eight_rows()
    assert cli.main(["sft", "--dataset", data, *SMALL.split(), "first"]) == 0
    words = [command, "--model", str(bases["biases"]), "--dataset", data]
    words += ["--adapter", "first/x", "--output_dir", "runs"]
    assert "adapter" in refused(words, capfd)


def test_a_field_of_trls_is_checked_before_base_and_data_are_read(capfd):
    words = ["sft", "--model", "./none", "--dataset", rows_in(Path(), [GOOD]), "--trl", "no_such=1"]
    Path("none").mkdir()
    shutil.copy(embedded.BASE / "config.json", "none")  # and no weights
    assert "trl no_such" in refused(words, capfd)


@pytest.mark.slow
def test_a_resume_with_other_rows_is_refused(capfd):
    assert cli.main(["sft", "--dataset", eight_rows(), *SMALL.split(), "first"]) == 0
    eight_rows("!")
    words = ["sft", "--resume", "first/x", "--max_steps", "2"]
    assert "is not what the run was trained on" in refused(words, capfd)


@pytest.mark.parametrize("size", few([7, 1]))
def test_a_reward_model_whose_head_is_of_another_base(size, capfd):
    shutil.copytree(embedded.TURNS, "start")
    head(Path("start"), weight=((0.5,) * size,))
    words = ["rm", "--dataset", eight_rows(), "--adapter", "start", *SMALL.split(), "runs"]
    assert f"its head reads {size} numbers, and the base gives 128" in refused(words, capfd)
    assert not Path("runs").exists()

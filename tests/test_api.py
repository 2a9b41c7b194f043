"""Runs from Python: the adapter of the command line, objects as options, following a run."""

import re
import time
from pathlib import Path

import pytest

import unslothrl
from unslothrl.algorithms.objective import Objective
from unslothrl.commands import api, cli
from unslothrl.errors import UserError

pytestmark = pytest.mark.real
SMALL = {
    "learner": "grpo", "max_steps": 2, "batch_size": 4, "num_candidates": 4, "max_new_tokens": 24,
    "number_of_actors": 0, "engine": "transformers", "cluster": "local", "eval_every": 0,
}  # fmt: skip
WEIGHTS = "adapters/v000002/adapter_model.safetensors"
TEXT = """
def short(completion, answer, *, most=24, **columns):
    return least / max(1, min(len(completion), most))

async def wrong(completion):
    raise ValueError("as a reward may")
"""


@pytest.fixture(autouse=True)
def functions(tmp_path, monkeypatch):
    """Of a notebook: no file holds them, and they use what is beside them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = {"least": 1.0, "__name__": "__main__"}
    exec(TEXT, names)
    return names


@pytest.mark.slow
def test_a_run_is_that_of_the_command_line(functions, tmp_path, capfd):
    objective = {"kl": "loss", "kl_coefficient": 0.01}
    options = {**SMALL, "objective": objective, "shuffle_rewards": False, "episodes": None}
    run = unslothrl.train(**options, reward=["accuracy", functions["short"]], run_name="here")
    assert (run.folder.name, run.status) == ("here", "finished")
    assert "finished: " in capfd.readouterr().out
    assert [*run.metrics.index] == [1, 2] == [row["step"] for row in run]
    (path,) = (text for text in run.config["reward"] if ".py:" in text)
    words = api._flags({**options, "reward": ["accuracy", path], "run_name": "there"})
    assert cli.main(["train", *words]) == 0
    again = unslothrl.Run.newest()
    assert again.folder.name == "there" and run.adapter.name == "v000002"
    assert (run.folder / WEIGHTS).read_bytes() == (again.folder / WEIGHTS).read_bytes()
    for made in run.rollouts():
        rewards = [value for name, value in made["rewards"].items() if "short" in name]
        assert rewards == pytest.approx([1 / max(1, min(len(made["completion"]), 24))])
    assert "<iframe" in run._repr_html_()


def test_a_run_is_followed_stopped_and_gone_on_with(functions):
    run = unslothrl.train(**{**SMALL, "max_steps": 30}, wait=False)
    seen = []
    for row in run:
        seen.append(row["step"])
        if len(seen) == 2:
            again = unslothrl.Run(run.folder)  # as another process has it
            assert run.status == again.status == "running"
            again.stop()
    assert run.status == "interrupted" and seen == [*range(1, len(seen) + 1)]
    last = run.rows[-1]["step"]
    assert unslothrl.train(resume=run.folder, max_steps=last + 1).rows[-1]["step"] == last + 1


@pytest.mark.slow
def test_the_stop_button_ends_a_run_that_is_followed(functions, monkeypatch):
    run, seen, sleep = unslothrl.train(**{**SMALL, "max_steps": 30}, wait=False), [], time.sleep

    def pressed(seconds):
        if seen:
            raise KeyboardInterrupt
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", pressed)
    with pytest.raises(KeyboardInterrupt):
        for row in run:
            seen.append(row)
    monkeypatch.setattr(time, "sleep", sleep)
    assert run.status == "interrupted" and run.adapter is not None
    last = run.rows[-1]["step"]
    done = unslothrl.train(resume=run.folder, max_steps=last + 1)
    assert unslothrl.train(resume=done.folder).folder == done.folder  # nothing is left to do


@pytest.mark.slow
def test_what_is_wrong_is_an_exception(functions):
    with pytest.raises(UserError, match="lr must be"):
        unslothrl.train(**SMALL, lr=-1)
    with pytest.raises(UserError, match="lambda"):
        unslothrl.train(**SMALL, reward=lambda completion: 1.0)
    with pytest.raises(UserError, match="as a reward may"):
        unslothrl.train(**SMALL, reward=functions["wrong"])


def test_objectives_classes_and_rows_may_be_objects(functions):
    rows = [{"problem": "What is 347 + 285?", "answer": "632"}]
    given = {"learner": Objective(), "environment": type("Mine", (), {}), "dataset": rows * 4}
    flags = dict(flag[2:].split("=", 1) for flag in api._flags(given))
    assert flags["environment"].endswith("/Mine.py:Mine")
    names: dict = {}
    exec(Path(flags["learner"]).read_text(), names)
    assert names["OBJECTIVE"] == Objective()
    assert Path(flags["dataset"]).read_text().count("347") == 4


@pytest.mark.slow
def test_a_notebooks_run_is_that_of_the_command_line(functions):
    """`make notebook-test` has the libraries for it."""
    nbclient, nbformat = map(pytest.importorskip, ("nbclient", "nbformat"))
    cell = f"import unslothrl\nunslothrl.train(**{SMALL!r}, run_name='kernel')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=600).execute()
    assert "<iframe" in notebook.cells[0].outputs[-1].data["text/html"]
    assert cli.main(["train", *api._flags({**SMALL, "run_name": "there"})]) == 0
    of_both = [(Path("runs") / name / WEIGHTS).read_bytes() for name in ("kernel", "there")]
    assert of_both[0] == of_both[1]


@pytest.mark.slow
def test_the_examples_of_the_page_run(capfd):
    page = (Path(__file__).parents[1] / "docs" / "python-api.md").read_text()
    names: dict = {"__name__": "__main__"}
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(example, names)
    printed = capfd.readouterr().out
    assert "finished)" in printed and "rollout/score" in printed and "interrupted" in printed

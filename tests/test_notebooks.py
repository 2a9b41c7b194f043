"""The notebooks as they are committed: outputs of the cells that they have, and nothing of the
machine that they were executed on. `make notebook-test` executes them."""

import json
import re
from pathlib import Path

import pytest

import notebooks


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_the_outputs_are_those_of_the_cells(name):
    notebook = notebooks.read(name)
    assert notebook["metadata"]["unslothrl"]["cpu_s"] < 2 * 120  # on two cores
    assert (notebooks.NOTEBOOKS / f"{name}.ipynb").stat().st_size < 200_000
    assert notebook["metadata"]["unslothrl"]["cells"] == notebooks.code_hash(notebook), (
        "the code was changed: make notebook-test ARGS=--write"
    )
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [output for output in outputs if output["output_type"] == "error"] == []
    for cell in cells:
        streams = [o["name"] for o in cell["outputs"] if o["output_type"] == "stream"]
        assert len(streams) == len(set(streams)), "lines in several parts"
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_nothing_of_the_machine_is_in_them(name):
    text = json.dumps(notebooks.read(name)["cells"])
    assert re.findall(rf"/(?:tmp|home|root|work|Users)/|{re.escape(str(Path.home()))}/", text) == []


def test_every_notebook_is_listed():
    assert sorted(path.stem for path in notebooks.NOTEBOOKS.iterdir()) == [*notebooks.NAMES]


def test_a_changed_cell_makes_the_outputs_stale():
    notebook = notebooks.read(notebooks.NAMES[0])
    before = notebooks.code_hash(notebook)
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    cell["source"] = [*cell["source"], "\nprint()"]
    assert notebooks.code_hash(notebook) != before

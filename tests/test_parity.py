"""docs/comparison.md names a test for everything that three other systems do, docs/architecture.md
one for each fault that was found; and tests of rows that no other file has."""

import re
from pathlib import Path

import pytest

from unslothrl.config.options import Config

ROOT = Path(__file__).parents[1]
TESTS = (ROOT / "tests", ROOT / "packages" / "answercheck" / "tests")
ROW = re.compile(r"^\| (.+) \| (.+) \| `([\w.]+)::(\w+)` \|$")
SYSTEMS = ("DistRL-LLM", "Colossal-RL", "RL2", "What their users ask for")
FOUND = "What use and attack have found"


@pytest.mark.parametrize(
    ("page", "names", "at_least"),
    [("comparison.md", SYSTEMS, 100), ("architecture.md", (FOUND,), 25)],
)
def test_every_row_names_a_test_that_exists(page, names, at_least):
    parts = (ROOT / "docs" / page).read_text().split("\n## ")[1:]
    sections = {part.partition("\n")[0]: part.splitlines() for part in parts}
    assert {*names} <= sections.keys()
    lines = [line for name in names for line in sections[name]]
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| what |")]
    found = [ROW.match(line) for line in rows if not line.startswith("| ---")]
    assert all(found) and len(found) >= at_least
    for what, _, file, function in (row.groups() for row in found):
        (path,) = (folder / file for folder in TESTS if (folder / file).exists())
        assert re.search(rf"^def {function}\(", path.read_text(), re.M), f"{what}: {file}"


def test_evaluation_samples_as_distrl_does():
    config = Config()
    assert (config.eval_temperature, config.eval_top_p, config.eval_candidates) == (0.6, 0.95, 8)

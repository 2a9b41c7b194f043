"""docs/parity.md names a test for everything that three other systems do, and for each
fault that was found; and tests of rows that no other file has."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from unslothrl.config.options import Config
from unslothrl.rewards.reward import Overlong

ROOT = Path(__file__).parents[1]
TESTS = (ROOT / "tests", ROOT / "packages" / "answercheck" / "tests")
DOCS = ROOT / "docs"
ROW = re.compile(r"^\| (.+) \| (.+) \| `([\w.]+)::(\w+)` \|$")
SYSTEMS = ("DistRL-LLM", "Colossal-RL", "RL2", "What their users ask for")


FOUND, GPU_SET = "What use and attack have found", "The GPU set without a GPU"


def sections() -> dict[str, list[str]]:
    parts = (DOCS / "parity.md").read_text().split("\n## ")[1:]
    return {part.partition("\n")[0]: part.splitlines() for part in parts}


def test_each_system_has_its_section():
    assert list(sections()) == [*SYSTEMS, FOUND, GPU_SET]


@pytest.mark.parametrize(("names", "at_least"), [(SYSTEMS, 100), ((FOUND,), 25)])
def test_every_row_names_a_test_that_exists(names, at_least):
    lines = [line for name in names for line in sections()[name]]
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| what |")]
    found = [ROW.match(line) for line in rows if not line.startswith("| ---")]
    assert all(found) and len(found) >= at_least
    for row in filter(None, found):
        file, function = row[3], row[4]
        (path,) = (folder / file for folder in TESTS if (folder / file).exists())
        assert re.search(rf"^def {function}\(", path.read_text(), re.M), f"{row[1]}: {file}"


def test_evaluation_samples_as_distrl_does():
    config = Config()
    assert (config.eval_temperature, config.eval_top_p, config.eval_candidates) == (0.6, 0.95, 8)


def test_the_overlong_punishment_never_falls_as_completions_get_shorter():
    punish = Overlong(1200, 300)
    rewards = [punish(length) for length in range(1, 1201)]
    assert all(longer <= shorter for shorter, longer in pairwise(rewards))
    assert (rewards[899], rewards[1049], rewards[1199]) == (0.0, -0.5, -1.0)

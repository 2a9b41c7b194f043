"""docs/parity.md names a test for everything that three other systems do; and tests of rows that no
other file has."""

import ast
import re
from itertools import pairwise
from pathlib import Path

from unslothrl.config.options import Config
from unslothrl.rewards.overlong import Overlong

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "parity.md"
ROW = re.compile(r"^\| (.+) \| (.+) \| `([\w.]+)::(\w+)` \|$")
SYSTEMS = ("DistRL-LLM", "Colossal-RL", "RL2", "What their users ask for")


def test_every_row_names_a_test_that_exists():
    lines = PAGE.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and line != "| what | here | test |"]
    found = [ROW.match(line) for line in rows if not line.startswith("| ---")]
    assert all(found) and len(found) > 100
    for row in filter(None, found):
        file, function = row[3], row[4]
        tree = ast.parse((TESTS / file).read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function in names, f"{row[1]}: {file}::{function}"
    assert [line[3:] for line in lines if line.startswith("## ")] == list(SYSTEMS)


def test_evaluation_samples_as_distrl_does():
    config = Config()
    assert (config.eval_temperature, config.eval_top_p, config.eval_candidates) == (0.6, 0.95, 8)


def test_the_overlong_punishment_never_falls_as_completions_get_shorter():
    punish = Overlong(1200, 300)
    rewards = [punish(length) for length in range(1, 1201)]
    assert all(longer <= shorter for shorter, longer in pairwise(rewards))
    assert (rewards[899], rewards[1049], rewards[1199]) == (0.0, -0.5, -1.0)

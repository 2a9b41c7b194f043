"""CI's parts, their budgets and the Makefile's targets name each other; `.ci/run` with a make of
its own counts each part, whatever one of them does."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT, BUDGET = ((ROOT / ".ci" / name).read_text() for name in ("run", "budget"))
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^ *part [\w-]+ make ([\w-]+)(?: ARGS=\S+)?$", SCRIPT, re.M)


def test_every_part_has_a_budget_a_target_and_files_that_exist():
    parts = re.findall(r"^ *part ([\w-]+) make", SCRIPT, re.M)
    budget = [line.split() for line in BUDGET.splitlines() if line[0] != "#"]
    assert {*parts, "all"} == {name for name, *_ in budget}
    assert [target for target in TARGETS if f"\n{target}: " not in MAKEFILE] == []
    patterns = {pattern for _, _, *patterns in budget for pattern in patterns}
    assert [pattern for pattern in patterns if not any(ROOT.glob(pattern))] == []


def test_every_slow_test_is_of_a_target():
    made = MAKEFILE.replace("\\\n", " ")
    listed = set(re.findall(r"tests/test_(\w+)\.py", made))
    for names in re.findall(r"\$\(call (?:slow_tests|files),([^)$]+)\)", made):
        listed |= set(names.split())
    listed |= {path.stem.removeprefix("test_") for path in (ROOT / "tests").glob("test_gpu_set_*")}
    slow = {
        path.stem.removeprefix("test_")
        for path in (ROOT / "tests").glob("test_*.py")
        if re.search(r"pytest\.mark\.slow|\bfew\(", path.read_text())
    }
    assert sorted(slow - listed - {"ci"}) == []
    assert [name for name in listed if not (ROOT / f"tests/test_{name}.py").exists()] == []

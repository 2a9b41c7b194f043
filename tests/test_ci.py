"""CI's parts, their budgets and the Makefile's targets name each other; `.ci/run` with a make of
its own counts each part, whatever one of them does."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

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


@pytest.mark.real
@pytest.mark.skipif(shutil.which("git") is None, reason="CI is of a checkout")
def test_a_part_that_fails_stops_no_other_and_one_that_passed_waits_for_a_change(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("make", "bwrap", "ip", "chromium"):
        (tmp_path / "bin" / name).write_text('#!/bin/sh\necho "made $1"\ntest "$1" != "$FAILS"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    copied = (".ci/run", ".ci/budget", "requirements.txt", "Makefile")
    for name in (*copied, "unslothrl/algorithms/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes() if name in copied else b"")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "-A"], check=True)

    def run(*parts: str, fails: str = "") -> tuple[int, list[str], str]:
        done = subprocess.run(
            ["bash", tmp_path / ".ci" / "run", *parts],
            env={"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "FAILS": fails},
            capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode, re.findall("^made (.*)$", done.stdout, re.M), done.stdout

    code, made, output = run(fails="trl-test")
    assert code == 1 and sorted(made) == sorted(TARGETS) and made[0] == "setup"
    assert re.findall(r"^(\S+) +\d+ s of +\d+ s  FAILED", output, re.M) == ["trl"]
    code, made, output = run()
    assert code == 0 and "trl-test" in made and "chain-test" not in made
    assert re.search(r"^chain +unchanged since it passed on 2\d{3}-\d\d-\d\d", output, re.M)
    (tmp_path / "unslothrl/algorithms/x.py").write_text("2\n")
    code, made, _ = run()
    assert code == 0 and "trl-test" in made and "site" not in made
    assert run("lint", "trl")[1] == ["lint", "trl-test"]

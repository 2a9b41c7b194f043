"""`.ci/run` with a make of its own: each part is run and counted, whatever one of them does."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="CI is of a checkout")
ROOT = Path(__file__).parents[1]
MAKE = """#!/bin/sh
echo "made $1"
test "$1" != "$FAILS"
"""


@pytest.fixture
def ci(tmp_path):
    """-> a function that runs .ci/run in a copy -> (exit code, output)."""
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("make", MAKE),
        ("bwrap", "#!/bin/sh\n"),
        ("ip", "#!/bin/sh\n"),
        ("chromium", "#!/bin/sh\n"),
    ):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".ci").mkdir()
    for name in ("run", "budget"):
        (tmp_path / ".ci" / name).write_bytes((ROOT / ".ci" / name).read_bytes())

    def run(*parts: str, fails: str = "", **budget: int) -> tuple[int, str]:
        limits = tmp_path / ".ci" / "budget"
        for name, seconds in budget.items():
            limits.write_text(re.sub(rf"(?m)^{name} .*$", f"{name} {seconds}", limits.read_text()))
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", tmp_path / ".ci" / "run", *parts],
            env={"PATH": path, "FAILS": fails}, capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    for name in ("requirements.txt", "Makefile", "unslothrl/algorithms/grpo.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "-A"], check=True)
    return run


def test_every_part_has_a_budget_and_a_row(ci):
    code, output = ci()
    assert code == 0
    script = (ROOT / ".ci/run").read_text()
    targets = re.findall(r"^ *part [\w-]+ make ([\w-]+)(?: ARGS=\S+)?$", script, re.M)
    made = re.findall("^made (.*)$", output, re.M)
    assert sorted(made) == sorted(targets) and len(targets) >= 12
    assert made[0] == "setup"
    rows = re.findall(r"^(\S+) +\d+ s of +(\d+) s  (\w*)", output, re.M)
    budget = dict(re.findall(r"^([\w-]+) (\d+)", (ROOT / ".ci/budget").read_text(), re.M))
    assert {name: limit for name, limit, _ in rows} == budget
    assert {status for name, _, status in rows if name != "all"} == {"passed"}
    assert budget["all"] == "2400"
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in targets if f"\n{name}: " not in makefile] == []


@pytest.mark.parametrize(("target", "part"), [("lint", "lint"), ("trl-test", "trl")])
def test_a_part_that_fails_stops_no_other(ci, target, part):
    code, output = ci(fails=target)
    assert code == 1 and "made notebook-test" in output and "made learn-test" in output
    assert re.findall(r"^(\S+) +\d+ s of +\d+ s  FAILED", output, re.M) == [part]
    assert re.search(r"^tests +\d+ s of +900 s  passed", output, re.M)


def test_parts_that_are_named_run_alone(ci):
    code, output = ci("lint", "trl")
    assert code == 0 and re.findall("^made (.*)$", output, re.M) == ["lint", "trl-test"]


def test_over_the_budget_is_a_warning(ci):
    code, output = ci("lint", lint=-1, all=-1)
    assert code == 0 and re.search(r"^lint .*  passed over budget by \d+ s$", output, re.M)
    assert re.search(r"^all .*over budget by \d+ s$", output, re.M)


def test_a_longer_part_runs_again_when_its_files_have_changed(ci, tmp_path):
    ci()
    code, output = ci()
    assert code == 0 and "made test" in output and "made chain-test" not in output
    assert re.search(r"^trl +unchanged since it passed on 2\d{3}-\d\d-\d\d in \d+ s$", output, re.M)
    (tmp_path / "unslothrl/algorithms/grpo.py").write_text("2\n")
    code, output = ci(fails="trl-test")
    made = re.findall("^made (.*)$", output, re.M)
    assert code == 1 and {"trl-test", "learn-test"} <= {*made} and "site" not in made
    code, output = ci()
    made = re.findall("^made (.*)$", output, re.M)
    assert code == 0 and "trl-test" in made and "learn-test" not in made
    assert "made site" in ci("all")[1]


def test_the_files_of_each_part_exist():
    lines = (ROOT / ".ci/budget").read_text().splitlines()
    patterns = {word for line in lines if line[0] != "#" for word in line.split()[2:]}
    assert len(patterns) > 30
    assert [each for each in patterns if not any(ROOT.glob(each))] == []

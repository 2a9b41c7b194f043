"""Sixty mistakes of users, each tried as it was made: one line that names the fix, or it works.

The cases are in two files, whose heads explain the fields; both were committed before they were
tried, the first written without reading the code.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
CASES = [
    case
    for file in ("mistakes_without_code.toml", "mistakes_with_code.toml")
    for case in tomllib.loads((ROOT / "tests" / file).read_text("utf-8"))["mistake"]
]
PYTHON = shlex.quote(sys.executable)
NAMES = {
    "{python}": PYTHON,
    "{repo}": shlex.quote(str(ROOT)),
    "{unslothrl}": f"{PYTHON} -m unslothrl",
}
LIMIT_S, PREPARING_S = 120, 600


def shell(command: str, folder: Path, limit: float) -> subprocess.CompletedProcess:
    """Runs a command of a case in its folder, without the descriptors and input of pytest."""
    for name, text in NAMES.items():
        command = command.replace(name, text)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, timeout=limit, env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL, capture_output=True, errors="replace",
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="the commands are bash's")
@pytest.mark.parametrize("case", CASES, ids=[case["name"].replace(" ", "_") for case in CASES])
def test_a_mistake_ends_in_one_line_that_names_the_fix_or_works(case, tmp_path):
    for name, text in case.get("files", {}).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for command in case.get("before", []):
        prepared = shell(command, tmp_path, PREPARING_S)
        assert prepared.returncode == 0, f"{command}\n{prepared.stdout}{prepared.stderr}"
    ended = shell(case["command"], tmp_path, LIMIT_S)
    printed = ended.stdout + ended.stderr
    errors = [line for line in ended.stderr.splitlines() if line.startswith("unslothrl: ")]
    assert "Traceback" not in printed, printed
    if case["expects"] == "works":
        assert ended.returncode == 0 and not errors, printed
    else:
        assert ended.returncode != 0, printed
        assert len(errors) == 1, printed
        assert any(name in errors[0] for name in case["names"]), errors[0]

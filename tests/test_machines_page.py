"""docs/install.md is what its program writes."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GPU_SET = ROOT / ".venv-gpu-set" / "bin" / "python"

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not GPU_SET.exists(), reason="`make gpu-set` installs the GPU set's versions")
def test_the_table_of_simulated_machines_is_what_the_commands_say():
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    program = "import machines; print(machines.page(), end='')"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'bench'}:{ROOT}"}
    made = subprocess.run(
        [GPU_SET, "-c", program],
        env=environment, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert made.stdout == (ROOT / "docs" / "install.md").read_text()

"""Runs Python as a user who owns nothing, with a copy of the package that anybody can read."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def python_for_everyone() -> str | None:
    """A Python of at least 3.11 that any user can start."""
    for path in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 11))"
        with contextlib.suppress(OSError):
            if subprocess.run([path, "-c", code], user=NOBODY, capture_output=True).returncode == 0:
                return path
    return None


def copy_package(folder: Path) -> None:
    """What the sandbox and the rewards need: the checkout may be out of others' sight."""
    package = folder / "unslothrl"
    for part in ("sandbox", "rewards"):
        shutil.copytree(ROOT / "unslothrl" / part, package / part)
    for file in (ROOT / "unslothrl").glob("*.py"):
        shutil.copy(file, package)

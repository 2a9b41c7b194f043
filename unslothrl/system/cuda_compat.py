"""CUDA 13 on the older driver of a data centre GPU, as Colab has one: NVIDIA's forward
compatibility (docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html). The package
cuda-compat-13-0 brings CUDA 13's own libcuda, which only drivers older than CUDA 13 may find.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path("/usr/local/cuda-13.0/compat")
OLDER = (535, 550, 565, 570, 575)  # NVIDIA_REQUIRE_CUDA of NVIDIA's CUDA 13.0 container images
DATA_CENTRE = re.compile(r"(NVIDIA|Tesla) (T4\b|[ABHL]\d)")  # as nvidia-smi names them
VARIABLE = "LD_LIBRARY_PATH"
DRIVER_S = 30


def use() -> None:
    """Starts this program again with `FOLDER` on the linker's path where that is needed: a process
    reads the variable once, when it starts."""
    path = os.environ.get(VARIABLE, "")
    is_needed = (FOLDER / "libcuda.so.1").exists() and str(FOLDER) not in path.split(":")
    if is_needed and any(map(fits, drivers())):
        os.environ[VARIABLE] = ":".join(filter(None, [str(FOLDER), path]))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def fits(driver: tuple[str, str]) -> bool:
    """Whether the package is for such a (driver's version, GPU's name)."""
    version, name = driver
    branch = version.partition(".")[0]
    return branch.isdigit() and int(branch) in OLDER and DATA_CENTRE.match(name) is not None


def drivers() -> list[tuple[str, str]]:
    """(driver's version, GPU's name) by nvidia-smi; [] where that is not there."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=driver_version,name", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_S)
    lines = [line.strip() for line in answer.stdout.splitlines() if not answer.returncode]
    pairs = [line.partition(", ") for line in lines if line[:1].isdigit()]
    return [(version, name) for version, _, name in pairs]

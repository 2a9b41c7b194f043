"""The GPU, its driver and what is installed, without what would tell whose machine it is."""

import ctypes
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from facts import card

from on_card.stages import ROOT


def gpu_facts() -> dict | None:
    """The first GPU and its driver; None without one."""
    if card() is None:
        return None
    fields = "name,memory.total,driver_version,compute_cap"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    name, memory_mb, driver, capability = output.split(", ")
    found = {"name": name, "memory_mb": int(memory_mb), "driver": driver, "capability": capability}
    is_wsl = "microsoft" in platform.release().lower()
    return found | cuda_facts() | {"WSL": is_wsl}


def mapped_files() -> list[str]:
    """The words of this process's memory map, among them its libraries with their whole paths."""
    return Path("/proc/self/maps").read_text().split()


def cuda_facts() -> dict:
    """The CUDA version of libcuda, and whether it is that of cuda-compat, with which a new CUDA
    runs on an older driver."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    libraries = [path for path in mapped_files() if "libcuda.so" in path]
    return {
        "CUDA of the driver": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "compatibility library": any("compat" in path for path in libraries),
    }


def other_versions() -> dict[str, str]:
    """What is installed at another version than the GPU set's, "-" for what is missing."""
    locked = (ROOT / "requirements.txt").read_text().splitlines()
    found = {}
    for name, _, version in (line.partition("==") for line in locked if "==" in line):
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed = "-"
        if installed != version:
            found[name] = installed
    return found


def gpu_line(gpu: dict | None) -> str:
    if gpu is None:
        return "no GPU"
    library = "the compatibility library" if gpu["compatibility library"] else "the driver's own"
    return (
        f"{gpu['name']}, {gpu['memory_mb']} MB, driver {gpu['driver']}, "
        f"CUDA {gpu['CUDA of the driver']} by {library}" + ", WSL 2" * gpu["WSL"]
    )

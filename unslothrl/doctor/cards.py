"""The cards, their driver, and the CUDA that torch was built for."""

import shutil
import subprocess
from collections.abc import Iterator

from unslothrl.doctor.check import OK, PROBLEM, WARNING, Check
from unslothrl.planning.machine import Gpu, Machine

LEAST_DRIVER = {12: 525, 13: 580}  # Linux branch, by the CUDA that torch was built for
LEAST_CAPABILITY = {12: (5, 0), 13: (7, 5)}
BFLOAT16 = (8, 0)  # capability from which a card computes with it
DRIVER_S = 30


def cards(machine: Machine) -> Iterator[Check]:
    """One line a card."""
    if machine.gpu_problem is not None:
        yield Check(
            "card",
            PROBLEM,
            f"there is one, but torch cannot use it ({' '.join(machine.gpu_problem.split()):.200})",
            "install torch for CUDA (make setup), or hide the card with CUDA_VISIBLE_DEVICES=",
        )
    elif not machine.gpus:
        yield Check("card", OK, "none: runs use the CPU")
    for gpu in machine.gpus:
        yield card(gpu)


def card(gpu: Gpu) -> Check:
    capability = ".".join(map(str, gpu.capability))
    found = (
        f"{gpu.name}, {gpu.memory_mb / 1024:.1f} GB, {gpu.free_mb / 1024:.1f} free, "
        f"compute capability {capability}"
    )
    if gpu.capability < BFLOAT16:
        return Check(
            "card", WARNING, f"{found}: no bfloat16", "use --recipe colab-t4, or --dtype float16"
        )
    if gpu.free_mb < gpu.memory_mb // 2:
        return Check(
            "card", WARNING, found, "end the programs that hold its memory: nvidia-smi lists them"
        )
    return Check("card", OK, found)


def driver(machine: Machine, cuda: str | None) -> Iterator[Check]:
    """The driver against the CUDA that torch was built for; nothing where there is no card."""
    versions = driver_versions()
    if not machine.gpus and not versions:
        return
    if cuda is None:
        yield Check("CUDA", PROBLEM, "torch is built for the CPU alone", "run `make setup`")
        return
    major = int(cuda.partition(".")[0])
    yield Check("CUDA", OK, f"{cuda}, which torch was built for")
    for gpu in machine.gpus:
        least = LEAST_CAPABILITY.get(major, (0, 0))
        if gpu.capability < least:
            yield Check(
                "CUDA",
                PROBLEM,
                f"{gpu.name} is too old for CUDA {major}, which needs compute capability "
                f"{least[0]}.{least[1]}",
                "hide it with CUDA_VISIBLE_DEVICES, or train on the CPU: make setup SET=cpu",
            )
    for version in versions[:1]:  # all cards share it
        yield driver_check(version, major)


def driver_check(version: str, cuda_major: int) -> Check:
    branch, least = version.partition(".")[0], LEAST_DRIVER.get(cuda_major)
    if least is not None and branch.isdigit() and int(branch) < least:
        return Check(
            "driver",
            PROBLEM,
            f"NVIDIA {version}, and CUDA {cuda_major} needs {least} or newer",
            f"sudo apt install nvidia-driver-{least}, and restart",
        )
    return Check("driver", OK, f"NVIDIA {version}")


def driver_versions() -> list[str]:
    """By nvidia-smi, one for each card; [] where it is not there or does not know."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line.strip() for line in answer.stdout.splitlines()]
    return [line for line in lines if line[:1].isdigit()] if answer.returncode == 0 else []

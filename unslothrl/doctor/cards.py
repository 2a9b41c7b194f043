"""The cards, their driver, and the CUDA that torch was built for."""

import platform
from collections.abc import Iterator

from unslothrl import cuda_compat
from unslothrl.doctor.check import OK, PROBLEM, WARNING, Check
from unslothrl.planning.machine import Gpu, Machine

LEAST_DRIVER = {12: 525, 13: cuda_compat.LEAST_DRIVER}  # Linux branch, by torch's CUDA
LEAST_CAPABILITY = {12: (5, 0), 13: (7, 5)}
BFLOAT16 = (8, 0)  # capability from which a card computes with it


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
    drivers = cuda_compat.drivers()
    if not machine.gpus and not drivers:
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
    for version, name in drivers[:1]:  # all cards share it
        yield driver_check(version, name, major)


def driver_check(version: str, name: str, cuda_major: int) -> Check:
    branch, least = version.partition(".")[0], LEAST_DRIVER.get(cuda_major)
    if least is None or not branch.isdigit() or int(branch) >= least:
        return Check("driver", OK, f"NVIDIA {version}")
    found = f"NVIDIA {version}, and CUDA {cuda_major} needs {least} or newer"
    if cuda_major == 13 and cuda_compat.fits((version, name)):
        if cuda_compat.is_installed():
            return Check("driver", OK, f"NVIDIA {version}, with {cuda_compat.FOLDER}")
        remedy = "sudo apt install cuda-compat-13-0, from NVIDIA's repository (docs/install.md)"
    elif "microsoft" in platform.release().lower():
        remedy = f"install NVIDIA's driver {least} or newer in Windows, and restart"
    else:
        remedy = f"sudo apt install nvidia-driver-{least}, and restart"
    return Check("driver", PROBLEM, found, remedy)

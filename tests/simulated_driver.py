"""A simulated NVIDIA driver for this process: the GPUs that FAKE_CARDS lists, on which nothing runs.

`tests/nvml.c` says which GPUs there are, `tests/libcuda.c` lets the compiled parts of vLLM load.
"""

import ctypes
import os
import subprocess
from pathlib import Path

H100 = "NVIDIA H100 80GB HBM3,81559,9.0"
RTX_3060 = "NVIDIA RTX 3060,12288,8.6"
RTX_4090 = "NVIDIA RTX 4090,24564,8.9"
LIBRARIES = {"nvml.c": "libnvidia-ml.so.1", "libcuda.c": "libcuda.so.1"}


def load(folder: Path, *gpus: str) -> None:
    """Compiles the libraries into `folder` and loads them, before vLLM is imported; whoever asks
    for them by name gets these from now on."""
    for source, library in LIBRARIES.items():
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", str(folder / library)]
        subprocess.run(["cc", *flags, Path(__file__).with_name(source)], check=True)
        ctypes.CDLL(str(folder / library), ctypes.RTLD_GLOBAL)
    set_gpus(*gpus)


def set_gpus(*gpus: str) -> None:
    os.environ["FAKE_CARDS"] = ";".join(gpus)

"""A simulated NVIDIA driver for this process: the GPUs that FAKE_CARDS lists, without a kernel.

`tests/nvml.c` says which GPUs there are; `tests/libcuda.c` lets the compiled parts of vLLM load and
has memory. Whoever asks for NVIDIA's libraries by name gets these.
"""

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

H100 = "NVIDIA H100 80GB HBM3,81559,9.0"
RTX_3060 = "NVIDIA RTX 3060,12288,8.6"
RTX_4090 = "NVIDIA RTX 4090,24564,8.9"
LIBRARIES = {"nvml.c": "libnvidia-ml.so.1", "libcuda.c": "libcuda.so.1"}


def set_gpus(*gpus: str) -> None:
    """To be called first before vLLM is imported."""
    load()
    os.environ["FAKE_CARDS"] = ";".join(gpus)


@functools.cache
def load() -> dict[str, ctypes.CDLL]:
    """Compiles the libraries and loads them. -> each by its source."""
    assert "vllm" not in sys.modules, "vLLM has looked for GPUs already"
    libraries = {}
    with tempfile.TemporaryDirectory() as folder:
        for source, name in LIBRARIES.items():
            library = f"{folder}/{name}"
            flags = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", library]
            subprocess.run(["cc", *flags, Path(__file__).with_name(source)], check=True)
            libraries[source] = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    return libraries


def mapped_bytes() -> int:
    """Of the simulated GPU's memory."""
    return ctypes.c_size_t.in_dll(load()["libcuda.c"], "simulated_mapped_bytes").value

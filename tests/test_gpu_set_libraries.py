"""Every shared library that a package of the GPU set needs is in the set, in the driver or in the C
library: a wheel that lacks one fails on a GPU alone.

The history: xformers was built for CUDA 12 and did not load beside torch's CUDA 13.
"""

import fnmatch
import re
import subprocess
import sysconfig
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SITE = Path(sysconfig.get_paths()["platlib"])
SYSTEM = re.compile(
    r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+|cuda|nvidia-ml|z|resolv|crypt))\.so"
)
OPTIONAL = {  # pattern of a file -> why it may lack what it needs
    "bitsandbytes/libbitsandbytes_cuda1[12]*.so": "for CUDA 11 and 12; torch's version chooses",
    "bitsandbytes/libbitsandbytes_rocm*.so": "AMD cards",
    "bitsandbytes/libbitsandbytes_xpu*.so": "Intel cards",
    "numba/np/ufunc/omppool.*": "numba has its own thread pool where OpenMP is missing",
    "numba/np/ufunc/tbbpool.*": "likewise for TBB",
    "nvidia/cu13/lib/libcufile_rdma.so.1": "InfiniBand",
    "nvidia/nvshmem/lib/nvshmem_bootstrap_*": "MPI and PMIx start",
    "nvidia/nvshmem/lib/nvshmem_transport_*": "InfiniBand and libfabric",
}


def needed() -> dict[str, set[str]]:
    """Library -> the files of the set that name it as NEEDED."""
    files = [path for path in SITE.rglob("*.so*") if path.is_file()]
    found: dict[str, set[str]] = defaultdict(set)
    for begin in range(0, len(files), 200):
        command = ["readelf", "-dW", *files[begin : begin + 200]]
        output = subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
        for part in re.split(r"^File: ", output, flags=re.MULTILINE)[1:]:
            name = str(Path(part.partition("\n")[0]).relative_to(SITE))
            for library in re.findall(r"\(NEEDED\).*\[(.+)\]", part):
                found[library].add(name)
    return found


def test_no_package_needs_a_library_that_is_not_there():
    there = {path.name for path in SITE.rglob("*.so*")}
    assert [
        (library, file)
        for library, files in needed().items()
        if library not in there and not SYSTEM.match(library)
        for file in files
        if not any(fnmatch.fnmatch(file, each) for each in OPTIONAL)
    ] == []

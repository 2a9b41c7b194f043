"""What set-up, doctor and a download say on machines that lack something: each lacks it for real,
in a mount namespace of its own, where nvidia-smi alone is made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADERS = "python{}.{}-dev".format(*sys.version_info)  # Debian's package
INCLUDE = "import sysconfig; print(sysconfig.get_paths('posix_prefix')['include'])"
SMI = """#!/bin/sh
case "$*" in
-L) echo "GPU 0: {name} (UUID: GPU-1)" ;;
*=name,driver_version*) echo "{name}, {driver}, 15360, {capability}" ;;
*=driver_version,name*) echo "{driver}, {name}" ;;
esac
"""

pytestmark = pytest.mark.real


@pytest.fixture
def inside(tmp_path):
    """-> a function that runs a program of Python where `mounts` (shell) were made, with a GPU."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")

    def run(mounts, *arguments, gpu=("NVIDIA GeForce RTX 4090", "580.95.05"), python=None, **more):
        programs = tmp_path / "bin"
        programs.mkdir(exist_ok=True)
        (programs / "nvidia-smi").write_text(
            SMI.format(name=gpu[0], driver=gpu[1], capability=7.5 if "T4" in gpu[0] else 8.9)
        )
        (programs / "nvidia-smi").chmod(0o755)
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **more}
        script = f'set -e; {mounts}\nexec "$@"'
        command = [str(python or sys.executable), *arguments]
        return subprocess.run(
            ["unshare", "-rm", "sh", "-c", script, "sh", *command],
            env=environment, capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip

    return run


CHECK = (str(ROOT / "tools/setup_env.py"), "--check", "--set", "gpu")
DOCTOR = ("-m", "unslothrl", "doctor", "--no_self_test")
COMPILER = ("-c", "from unslothrl.commands import doctor; print(doctor.compiler().line())")


def lines(answer, beginning):
    text = answer.stdout + answer.stderr
    return [line for line in text.splitlines() if line.startswith(beginning)]


def doctors(answer, name):
    found = [line for line in answer.stdout.splitlines() if line[9:].startswith(name)]
    assert len(found) == 1, answer.stdout + answer.stderr
    return found[0]


def test_nothing_is_wrong_where_nothing_lacks(inside):
    answer = inside("", *CHECK)
    assert lines(answer, "compiler") == lines(answer, "driver") == lines(answer, "cache") == []
    assert not lines(answer, "[setup] warning")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mounts", "variables", "beginning", "said"),
    [
        ("PATH={tmp}/bin", {}, "compiler", f"sudo apt install gcc {HEADERS}"),
        ("mount -t tmpfs tmpfs {headers}", {}, "compiler", "Python.h: No such file or directory"),
        ("mkdir {tmp}/small; mount -t tmpfs -o size=1m tmpfs {tmp}/small",
         {"TMPDIR": "{tmp}/small"}, "disk", "0.0 GB free at {tmp}/small, needs 4.1 GB"),
        ("mount -t tmpfs -o size=64m tmpfs /dev/shm", {}, "[setup] warning: /dev/shm",
         "has 64 MB, too few for Ray and NCCL: docker run --shm-size=8g"),
        ("mkdir {tmp}/home; mount -t tmpfs -o ro tmpfs {tmp}/home",
         {"HOME": "{tmp}/home", "XDG_CACHE_HOME": "", "HF_HOME": ""}, "cache",
         "found {tmp}/home/.cache/huggingface, which cannot be written"),
        ("mount --bind {root} {root}; mount -o remount,ro,bind {root}", {}, "folder",
         "clone the repository into a folder of yours"),
    ],
)  # fmt: skip
def test_set_up_names_what_a_machine_lacks(mounts, variables, beginning, said, inside, tmp_path):
    headers = subprocess.check_output([sys.executable, "-c", INCLUDE], text=True).strip()
    places = {"tmp": tmp_path, "headers": headers, "root": ROOT}
    variables = {name: value.format(**places) for name, value in variables.items()}
    answer = inside(mounts.format(**places), *CHECK, **variables)
    (line,) = lines(answer, beginning)
    assert said.format(**places) in line
    assert answer.returncode == 2 or "warning" in beginning


@pytest.mark.slow
def test_doctor_names_what_a_machine_lacks(inside, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    mounts = f"mount -t tmpfs -o ro tmpfs {home}; mount -t tmpfs -o size=64m tmpfs /dev/shm"
    answer = inside(mounts, *DOCTOR, HOME=str(home), XDG_CACHE_HOME="", HF_HOME=f"{home}/hub")
    assert "set HF_HOME" in doctors(answer, "disk: hub")
    assert "--shm-size=" in doctors(answer, "/dev/shm")
    assert doctors(answer, "compiler").startswith("ok")
    assert inside(f"PATH={tmp_path}/bin", *COMPILER).stdout.startswith("problem  compiler")


COMPAT = """
import ctypes, os
from unslothrl.system import variables
variables.use_cuda_compat()
print(os.environ.get("LD_LIBRARY_PATH"), ctypes.CDLL("libcuda.so.1").made_here())
"""


@pytest.mark.slow
def test_cuda_compat_is_found_before_the_driver(inside, tmp_path):
    """The program starts itself again once, and what it loads is the package's library."""
    made = tmp_path / "made" / "cuda-13.0" / "compat"
    made.mkdir(parents=True)
    source = "int made_here(void) { return 42; }"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(made / "libcuda.so.1")]
    subprocess.run(command, input=source, text=True, check=True)
    mounts = f"mount -t overlay overlay -o lowerdir={tmp_path}/made:/usr/local /usr/local"
    if inside(mounts, "-c", "").returncode:
        pytest.skip("no overlays here")
    colab = {"gpu": ("Tesla T4", "550.54.15"), "LD_LIBRARY_PATH": "/usr/lib64-nvidia"}
    assert lines(inside(mounts, *CHECK, **colab), "driver") == []
    answer = inside(mounts, "-c", COMPAT, **colab)
    assert answer.stdout == "/usr/local/cuda-13.0/compat:/usr/lib64-nvidia 42\n", answer.stderr
    for gpu in (("Tesla T4", "580.95.05"), ("NVIDIA GeForce RTX 4090", "550.54.15")):
        answer = inside(mounts, "-c", COMPAT, gpu=gpu, LD_LIBRARY_PATH="/usr/lib64-nvidia")
        assert "libcuda.so.1: cannot open" in answer.stderr

"""The wheel: its size, and that it works where the checkout is not, also where there is nothing."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import release
from python_process import python

ROOT = Path(__file__).parents[1]
PAGES = ("coming-from.md", "metrics.md", "using.md")  # that the program reads

pytestmark = [pytest.mark.real, pytest.mark.slow]


def tracked(folder: Path, name: str = ".") -> list[str]:
    found = subprocess.check_output(["git", "ls-files", "-z", name], cwd=folder, text=True)
    return found.split("\0")[:-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from the tracked files alone, as from a clean checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in tracked(ROOT):
        is_left_out = name.startswith(("bench/", "tests/", "docs/"))
        is_needed = not is_left_out or Path(name).name in PAGES
        if (ROOT / name).exists() and is_needed:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    python("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", folder, source)
    (built,) = folder.glob("unslothrl-*.whl")
    return built


@pytest.fixture(scope="module")
def program(wheel, tmp_path_factory) -> Path:
    """`unslothrl` of an environment that holds the wheel and nothing else; the packages that it
    needs are read from this one's, without the line by which this one finds the checkout."""
    folder = tmp_path_factory.mktemp("environment")
    python("-m", "venv", "--without-pip", folder)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    flags = ["--no-deps", "-q", "--prefix", folder, "--ignore-installed"]
    python("-m", "pip", "install", *flags, wheel)
    assert (packages / "unslothrl" / "__init__.py").is_file()
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "unslothrl"


def said(program: Path, folder: Path, *arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.check_output([program, *arguments], cwd=folder, env=environment, text=True)


def test_the_wheel_is_small_and_holds_what_a_run_needs(wheel):
    assert wheel.stat().st_size < 12 << 20
    names = zipfile.ZipFile(wheel).namelist()
    for name in (ROOT / "recipes").glob("*.toml"):
        assert f"unslothrl/recipes/{name.name}" in names
    read = [*PAGES, "requirements.txt", "requirements-cpu.txt", "tools/setup_here.py"]
    assert {f"unslothrl/{name}" for name in read} <= {*names}
    for package in (ROOT / "unslothrl", ROOT / "packages" / "answercheck" / "answercheck"):
        files = tracked(package.parent, package.name)
        assert files and set(files) <= set(names)
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"unslothrl", "answercheck"}


def test_it_works_outside_the_checkout(program, tmp_path):
    assert said(program, tmp_path, "--version").startswith("unslothrl ")
    code = "import answercheck, unslothrl as u; print(u.__file__, answercheck.__file__)"
    found = said(program.parent / "python", tmp_path, "-c", code)
    assert all(Path(file).is_relative_to(program.parents[1]) for file in found.split())
    assert "tiny-cpu" in said(program, tmp_path, "recipes")
    kind = "gpu" if find_spec("unsloth") else "cpu"
    assert "has all of it" in said(program, tmp_path, "setup", "--set", kind, "--check")
    assert "embedded: 2,000 rows" in said(program, tmp_path, "data", "embedded")
    fast = "--number_of_actors 0 --engine transformers --cluster local --max_steps 1"
    small = "--batch_size 4 --eval_every 0 --run_name wheel"
    said(program, tmp_path, "train", "--recipe", "tiny-cpu", *fast.split(), *small.split())
    assert (tmp_path / "runs" / "wheel" / "report.html").is_file()


def test_an_empty_environment_gets_one_process_and_then_ray_and_vllm(wheel, tmp_path):
    """As a release is tried: 1.2 GB of downloads, or 4 GB where pip finds torch for CUDA alone."""
    release.try_wheel(wheel, tmp_path)

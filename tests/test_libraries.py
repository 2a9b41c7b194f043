"""The shared libraries of a lock's wheels: made-up wheels with real libraries, and what was read
from the GPU set's own."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import elf
import libraries
import lock
import pytest

GPU = next(plan for plan in lock.plans() if plan.name == "gpu")
compiled = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def library(folder: Path, name: str, *needs: Path, runpath: str = "") -> Path:
    """A shared library named `name` that needs the others."""
    source = folder / "empty.c"
    source.write_text("int nothing;\n")
    made = folder / name
    command = ["gcc", "-shared", "-fPIC", str(source), f"-Wl,-soname,{name}", "-Wl,--no-as-needed"]
    command += [*map(str, needs), *([f"-Wl,-rpath,{runpath}"] if runpath else [])]
    subprocess.run([*command, "-o", str(made)], check=True)
    return made


def wheel(folder: Path, name: str, content: dict[str, Path], requires: tuple = ()) -> Path:
    path = folder / f"{name}-1.0-py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
        lines += [f"Requires-Dist: {one}" for one in requires]
        archive.writestr(f"{name}-1.0.dist-info/METADATA", "\n".join(lines) + "\n\ntext\n")
        for entry, source in content.items():
            archive.write(source, entry)
    return path


@pytest.fixture(scope="module")
def cuda12(tmp_path_factory):
    """libcudart.so.12 and an extension module that was linked against it."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("cuda12")
    runtime = library(folder, "libcudart.so.12")
    return runtime, library(folder, "_C.so", runtime)


def faults(*wheels: Path, optional=None) -> list[str]:
    return libraries.missing(map(libraries.read_wheel, wheels), optional or {})


def test_a_library_built_for_another_cuda_is_found(tmp_path, cuda12):
    runtime, module = cuda12
    theirs = wheel(tmp_path, "attention", {"attention/_C.so": module})
    newer = library(tmp_path, "libcudart.so.13")
    cuda13 = wheel(tmp_path, "nvidia_cuda_runtime", {"nvidia/cu13/lib/libcudart.so.13": newer})
    assert faults(theirs, cuda13) == [
        "attention-1.0-py3-none-manylinux_2_28_x86_64.whl: attention/_C.so needs libcudart.so.12: "
        "no wheel has it"
    ]
    older = wheel(tmp_path, "nvidia_cuda_runtime", {"nvidia/cu12/lib/libcudart.so.12": runtime})
    assert faults(theirs, older) == []  # importing torch loads what NVIDIA's wheels bring
    assert faults(theirs, cuda13, optional={"attention/*": "not used"}) == []


def test_a_library_of_a_stranger_is_found_only_where_the_loader_looks(tmp_path, cuda12):
    runtime, module = cuda12
    holder = wheel(tmp_path, "holder", {"holder/lib/libcudart.so.12": runtime})
    alone = wheel(tmp_path, "alone", {"alone/_C.so": module})
    assert faults(alone, holder) == [
        "alone-1.0-py3-none-manylinux_2_28_x86_64.whl: alone/_C.so needs libcudart.so.12: "
        "only holder has it"
    ]
    asking = wheel(tmp_path, "asking", {"asking/_C.so": module}, ("holder>=1; python_version>'3'",))
    assert faults(asking, holder) == []
    led = library(tmp_path, "led.so", runtime, runpath="$ORIGIN/../holder/lib")
    lost = library(tmp_path, "lost.so", runtime, runpath="$ORIGIN/../holder")
    assert faults(wheel(tmp_path, "led", {"led/led.so": led}), holder) == []
    assert len(faults(wheel(tmp_path, "lost", {"lost/lost.so": lost}), holder)) == 1


def test_a_wheels_own_libraries_serve_itself_and_vendored_ones_nobody_else(tmp_path, cuda12):
    runtime, module = cuda12
    content = {"own/_C.so": module, "own.libs/libcudart.so.12": runtime}
    own = wheel(tmp_path, "nvidia_own", content)
    assert faults(own) == []
    other = wheel(tmp_path, "other", {"other-1.0.data/platlib/other/_C.so": module})
    assert len(faults(own, other)) == 1
    assert "other/_C.so needs" in faults(own, other)[0]


def test_what_was_read_comes_back_from_its_file(tmp_path, cuda12):
    _, module = cuda12
    path = wheel(tmp_path, "attention", {"attention/_C.so": module}, ("torch",))
    read = libraries.read_wheel(path, "abc")
    assert read.requires == ("torch",)
    assert [(need.library, need.by) for need in read.needs] == [
        ("libcudart.so.12", "attention/_C.so")
    ]
    libraries.save(tmp_path / "read.json", {"3.12": [read]}, "digest")
    stored = libraries.load(tmp_path / "read.json")
    assert libraries.known(stored) == {"abc": read}
    assert stored["lock"] == "digest" and stored["sets"] == {"3.12": [path.name]}


def test_a_wheel_with_another_hash_is_refused(tmp_path):
    (tmp_path / "there").mkdir()
    path = wheel(tmp_path / "there", "plain", {})
    with pytest.raises(ValueError, match="the index says 0000"):
        libraries.download(path.as_uri(), "0000", tmp_path)


@compiled
def test_the_reader_agrees_with_readelf():
    import numpy
    import torch

    some = sorted(Path(torch.__file__).parent.glob("lib/*.so"))[:6]
    some += sorted(Path(numpy.__file__).parent.rglob("*.so"))[:6]
    some += sorted(Path(numpy.__file__).parents[1].glob("numpy.libs/*.so*"))
    for path in some:
        command = ["readelf", "-dW", str(path)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        values = {
            kind: [line.split("[")[1].rstrip("]") for line in lines.splitlines() if kind in line]
            for kind in ("(NEEDED)", "(SONAME)", "(RUNPATH)", "(RPATH)")
        }
        with path.open("rb") as file:
            found = elf.read(file)
        assert list(found.needed) == values["(NEEDED)"], path
        assert [found.soname] == (values["(SONAME)"] or [None])
        assert ":".join(found.search) == "".join(values["(RUNPATH)"] or values["(RPATH)"])
    assert len(some) > 8


def test_a_cut_library_is_an_error_and_text_is_none(tmp_path):
    text = tmp_path / "linker-script.so"
    text.write_text("INPUT(libreal.so)\n" * 10)
    with text.open("rb") as file:
        assert elf.read(file) is None
    cut = tmp_path / "cut"
    cut.write_bytes(Path(sys.executable).resolve().read_bytes()[:100])
    with cut.open("rb") as file, pytest.raises(ValueError, match="past the end"):
        elf.read(file)


# The GPU set as `make lock` read it


def test_the_gpu_set_was_read_for_both_pythons_and_lacks_nothing():
    stored = libraries.load(GPU.libraries)
    assert sorted(stored["sets"]) == ["3.11", "3.12"]
    assert lock.library_faults(GPU) == []
    for files in stored["sets"].values():
        packages = {file.split("-")[0] for file in files}
        assert {"torch", "vllm", "bitsandbytes", "nvidia_cuda_runtime", "triton"} <= packages


def test_without_cudas_runtime_the_gpu_set_would_be_refused():
    wheels = libraries.known(libraries.load(GPU.libraries)).values()
    without = [one for one in wheels if one.package != "nvidia-cuda-runtime"]
    lines = libraries.missing(without, GPU.optional)
    named = {line.split("-")[0] for line in lines if "needs libcudart.so.13" in line}
    assert {"vllm", "torch", "bitsandbytes"} <= named


def test_a_lock_whose_wheels_were_not_read_is_named(tmp_path):
    copy = type(GPU).__new__(type(GPU))
    copy.__dict__.update(GPU.__dict__, file=tmp_path / "requirements.txt")
    copy.file.write_text(GPU.file.read_text().replace("ray==2.60.0", "ray==2.60.1"))
    assert "shared libraries were not read: run `make lock`" in lock.library_faults(copy)[0]
    copy = type(GPU).__new__(type(GPU))
    copy.__dict__.update(GPU.__dict__, optional={**GPU.optional, "nothing/*": "gone"})
    assert lock.library_faults(copy) == ["optional-libraries: nothing/* excuses nothing"]

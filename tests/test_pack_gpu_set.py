"""What tools/pack_gpu_set.py packs for a machine without a network, and how."""

import fnmatch
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pack_gpu_set
import pytest
from lock import pins

WANTED = pins(pack_gpu_set.LOCK.read_text())


def test_every_pin_is_packed_on_the_target_or_dropped_for_a_reason():
    has = pack_gpu_set.on_target("torch==2.11.0\nNumPy==2.1.3\n\nscipy\nJinja2\n")
    assert has == {"torch": "2.11.0", "numpy": "2.1.3", "scipy": "", "jinja2": ""}
    found = pack_gpu_set.places(WANTED, has)
    assert found.keys() == WANTED.keys()
    assert found["torch"] == "on the target" and found["jinja2"] == "on the target"
    assert found["numpy"] == "on the target: version 2.1.3"  # it differs from the pin
    assert found["ruff"] == "dropped: checks the code"
    assert {found[name] for name in ("vllm", "unsloth", "ray", "renderers", "bm25s")} == {"packed"}
    assert all(why.startswith(("packed", "on the target", "dropped: ")) for why in found.values())


def test_every_pattern_drops_a_pin_and_none_what_the_project_imports():
    dropped = {name for name in WANTED if pack_gpu_set.why_dropped(name)}
    for patterns in pack_gpu_set.DROPPED:
        assert all(fnmatch.filter(WANTED, pattern) for pattern in patterns.split())
    assert len(dropped) == 19
    kept = {"bitsandbytes", "flashinfer-python", "nvidia-cuda-nvrtc", "peft", "triton", "vllm"}
    assert kept <= WANTED.keys() - dropped


@pytest.fixture
def wheel(tmp_path) -> Path:
    """A wheel with modules, a program, libraries for other machines, tests and a script."""
    path = tmp_path / "some-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in (
            "some/module.py",
            "some/tests/test_module.py",
            "bitsandbytes/libbitsandbytes_cuda130.so",
            "bitsandbytes/libbitsandbytes_cuda118.so",
            "some-1.data/purelib/more.py",
            "some-1.data/scripts/some",
        ):
            archive.writestr(name, name)
        program = zipfile.ZipInfo("some/server")
        program.external_attr = 0o755 << 16
        archive.writestr(program, "server")
    return path


def test_a_wheel_is_unpacked_as_pip_does_it_without_what_is_never_loaded(wheel, tmp_path):
    site = tmp_path / "site"
    pack_gpu_set.unpack(wheel, site)
    files = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    libraries = {"bitsandbytes/libbitsandbytes_cuda130.so"}
    assert files == {"some/module.py", "some/server", "more.py", *libraries}
    assert stat.S_IMODE((site / "some/server").stat().st_mode) == 0o755


def test_the_parts_together_are_the_archive(monkeypatch, tmp_path):
    monkeypatch.setattr(pack_gpu_set, "PART_BYTES", 100)
    archive, out = tmp_path / "site.tar.xz", tmp_path / "out"
    (tmp_path / "module.py").write_bytes(bytes(range(250)))
    with tarfile.open(archive, "w:xz") as packed:
        packed.add(tmp_path / "module.py", "module.py")
    out.mkdir()
    count = pack_gpu_set.cut(archive, out)
    parts = [out / f"{number:02d}" / f"part-{number:02d}" for number in range(count)]
    assert len(list(out.iterdir())) == count > 1
    assert all(part.stat().st_size <= 100 for part in parts)
    together = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(fileobj=together) as packed:
        assert packed.extractfile("module.py").read() == bytes(range(250))

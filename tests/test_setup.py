"""Set-up: what it finds wrong before a download, when it installs again, if the locks hold.

Nothing here needs a network, a card or a second environment."""

import copy
import subprocess
import sys
from importlib import metadata

import lock
import machine
import pytest
import setup_env
from packaging.utils import canonicalize_name

from unslothrl.system import cuda_compat

ROOT = setup_env.ROOT
CARD = machine.Card("NVIDIA GeForce RTX 4090", "580.95.05", 8.9, 24564)
PLANS = {plan.name: plan for plan in lock.plans()}
PINS = {name: lock.pins(plan.file.read_text()) for name, plan in PLANS.items()}


# What the machine is


@pytest.mark.parametrize(
    ("wanted", "cards", "system", "processor", "kind"),
    [
        (None, [CARD], "Linux", "x86_64", "gpu"),
        (None, [], "Linux", "x86_64", "cpu"),
        ("cpu", [CARD], "Linux", "x86_64", "cpu"),
        ("gpu", [], "Linux", "x86_64", "gpu"),
        (None, [], "Darwin", "arm64", "base"),
        (None, [CARD], "Windows", "AMD64", "base"),
        (None, [], "Linux", "aarch64", "base"),
    ],
)
def test_the_set_follows_the_machine_unless_told(wanted, cards, system, processor, kind):
    assert setup_env.choose_set(wanted, cards, system, processor) == kind


@pytest.mark.parametrize(
    ("says", "cards", "trouble"),
    [
        ("No devices were found", [], "No devices were found"),
        ("A100, 580.95.05, [N/A], 8.0", [("A100", "580.95.05", 8.0, 0)], None),  # instances
        (
            "NVIDIA GeForce RTX 4090, 580.95.05, 24564, 8.9\nTesla T4, 450.80.02, 15109\n",
            [CARD, ("Tesla T4", "450.80.02", None, 15109)],  # whose driver cannot tell
            None,
        ),
        ("", [], "it lists no card"),
    ],
)
def test_what_nvidia_smi_says_is_taken_as_it_is(says, cards, trouble, tmp_path, monkeypatch):
    program(tmp_path, "nvidia-smi", f"echo '{says}'" if says else "true")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found, said = machine.find_cards()
    assert (found, said) == (cards, trouble)
    assert machine.card_faults(found[:1]) == []


def program(folder, name, script):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_shim_that_fails_is_passed_over_for_a_python_that_runs(tmp_path):
    old = program(tmp_path, "python3", "echo 3.9")
    shims, real = tmp_path / "shims", tmp_path / "real"
    program(shims, "python3.12", "echo 'command not found' >&2; exit 127")
    good = program(real, "python3.12", "echo 3.12")
    assert machine.find_python([str(shims), str(real)], old) == (good, None)


@pytest.mark.parametrize(
    ("says", "compiles", "remedy"),
    [
        ("3.13", False, "python3.12-venv, or"),  # the CPU set compiles nothing
        ("3.13", True, "apt install python3.12 python3.12-venv python3.12-dev, or"),
    ],
)
def test_a_wrong_python_is_one_line_with_the_remedy(says, compiles, remedy, tmp_path):
    python, fault = machine.find_python([], program(tmp_path, "python3", f"echo {says}"), compiles)
    line = machine.fault_line(fault)
    assert python is None and "\n" not in line and remedy in line


# Whether it will do


TURING = machine.Card("Tesla T4", "580.95.05", 7.5, 15360)
PASCAL = machine.Card("GTX 1080", "580.95.05", 6.1, 8192)
T4 = TURING._replace(driver="550.54.15")


def test_the_older_driver_of_a_data_centre_gpu_takes_cuda_compat(monkeypatch, tmp_path):
    assert (str(cuda_compat.FOLDER), cuda_compat.OLDER) == (machine.COMPAT, machine.COMPAT_DRIVERS)
    for name in ("NVIDIA L40S", "NVIDIA RTX A6000", "NVIDIA T400"):
        is_one = name == "NVIDIA L40S"
        assert machine.may_use_compat(T4._replace(name=name)) is is_one
        assert cuda_compat.fits((T4.driver, name)) is is_one
    monkeypatch.setattr(machine, "COMPAT", str(tmp_path))
    (fault,) = machine.card_faults([T4])
    assert fault.mend.startswith("sudo apt install cuda-compat-13-0, ")
    assert machine.library_path([T4], {}) == {}
    (tmp_path / "libcuda.so.1").touch()
    assert machine.card_faults([T4]) == []
    path = {"LD_LIBRARY_PATH": "/usr/lib64-nvidia"}  # as Colab has it
    assert machine.library_path([T4], path) == {"LD_LIBRARY_PATH": f"{tmp_path}:/usr/lib64-nvidia"}
    assert machine.library_path([T4], {}) == {"LD_LIBRARY_PATH": str(tmp_path)}
    assert machine.library_path([TURING], path) == {}  # with driver 580 it would fail
    for card in (CARD._replace(driver="550.54.15"), T4._replace(driver="545.23.08")):
        (fault,) = machine.card_faults([card])  # a GeForce; a branch that it does not run on
        assert "nvidia-driver-580" in fault.mend and machine.library_path([card], {}) == {}


def test_in_wsl_the_driver_is_that_of_windows(monkeypatch):
    monkeypatch.setattr("platform.release", lambda: "5.15.167.4-microsoft-standard-WSL2")
    (fault,) = machine.card_faults([CARD._replace(driver="566.36")])
    assert "in Windows" in fault.mend and "apt" not in fault.mend


def test_an_old_card_is_refused_unless_a_better_one_is_there():
    assert machine.card_faults([CARD]) == machine.card_faults([TURING]) == []
    assert machine.card_warning(CARD) is None and "no bfloat16" in machine.card_warning(TURING)
    (fault,) = machine.card_faults([PASCAL])
    assert "compute capability 6.1" in fault.found and "SET=cpu" in fault.mend
    assert machine.card_faults([PASCAL, CARD]) == []
    assert "CUDA_VISIBLE_DEVICES" in machine.card_warning(PASCAL)


def test_needs_on_one_disk_add_up(tmp_path):
    header = {"download-bytes": "2000000000", "installed-bytes": "5000000000"}
    needs = machine.disk_needs(header, tmp_path / "absent" / ".venv", {"PIP_CACHE_DIR": "/"})
    assert [count for _, count in needs] == [5e9, 2e9, 2e9]
    assert needs[0][0] == tmp_path
    assert len(machine.disk_needs(header, tmp_path, {"PIP_NO_CACHE_DIR": "1"})) == 2

    def faults(free, device):
        return machine.disk_faults(needs, lambda path: free, device)

    (fault,) = faults(6e9, lambda path: "one disk")
    assert f"6.0 GB free at {tmp_path}, needs 9.0 GB" in machine.fault_line(fault)
    assert faults(6e9, str) == []
    assert faults(9e9, lambda path: "one disk") == []


# What was done before


def test_state_of_an_environment(tmp_path):
    folder = tmp_path / ".venv"

    def now(kind="cpu", lock_digest="L", project="P"):
        return setup_env.state(folder, kind, lock_digest, project)

    assert now() == "absent"
    folder.mkdir()
    assert now() == "foreign"  # somebody's own environment is never removed
    setup_env.fresh(folder)
    (folder / "half").write_text("installed")
    assert now() == "interrupted"
    setup_env.fresh(folder)
    assert not (folder / "half").exists()
    stamp = {"complete": True, "set": "cpu", "lock": "L", "project": "P"}
    setup_env.write_stamp(folder, **stamp, program=sys.executable)
    assert (now(), now(project="P2")) == ("current", "moved")
    assert now(lock_digest="L2") == now(kind="gpu") == "stale"
    setup_env.write_stamp(folder, **stamp, program="/absent/python")
    assert now() == "stale"
    (folder / setup_env.STAMP).write_text("{")
    assert now() == "interrupted"


@pytest.mark.real
def test_pip_failures_carry_pips_own_words():
    with pytest.raises(setup_env.Failed, match="Invalid requirement"):
        setup_env.pip(sys.executable, "--no-index", "not a requirement")


def test_what_does_not_import_is_named_in_a_line(tmp_path, monkeypatch):
    (tmp_path / "refusing.py").write_text("print('a banner'); raise SystemExit('no card found')")
    (tmp_path / "crashing.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for names, fault in (
        (["json"], ""),
        (["json", "refusing"], "json, refusing: does not import here: no card found"),
        (["crashing"], "crashing: does not import here: exit -6"),
    ):
        assert setup_env.import_fault(sys.executable, names) == fault


def test_the_check_command_reports_and_writes_nothing(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("tools/setup_env.py", "tools/machine.py", "requirements-cpu.txt",
                 "pyproject.toml", "setup.py"):  # fmt: skip
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    before = sorted(tmp_path.rglob("*"))
    command = [sys.executable, "-B", str(tools / "setup_env.py"), "--check", "--set", "cpu"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert "GB to download" in answer.stdout or "base dependencies" in answer.stdout
    assert answer.returncode == (2 if answer.stderr else 0)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / ".venv").mkdir()
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 2 and "this program did not create" in answer.stderr


# The locks


def test_locks_hold_every_package_that_their_installed_packages_require():
    """Complete: what is installed here asks for nothing that the lock neither has nor excludes."""
    installed = {canonicalize_name(d.name): d.requires or [] for d in metadata.distributions()}
    kind = "gpu" if "vllm" in installed else "cpu"
    known = set(PINS[kind]) | {canonicalize_name(name) for name in PLANS[kind].exclude}
    for name in PINS[kind]:
        for requirement in map(lock.Requirement, installed.get(name, [])):
            if not requirement.marker or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in known, f"{name} needs {requirement}"


def test_the_cpu_lock_holds_nothing_that_breaks_without_a_card():
    forbidden = {"vllm", "torchvision", "torchaudio", "torchcodec", "triton", "xformers"}
    assert not forbidden & set(PINS["cpu"])
    assert not [name for name in PINS["cpu"] if name.startswith(("nvidia-", "cuda-"))]
    assert PINS["cpu"]["torch"] == "2.13.0+cpu"


def test_both_locks_agree_on_what_this_project_imports():
    project = [*PLANS["cpu"].wanted, *PLANS["gpu"].wanted]
    names = {canonicalize_name(lock.Requirement(line).name) for line in project} - {"torch"}
    shared = names & set(PINS["cpu"]) & set(PINS["gpu"])
    assert {"transformers", "peft", "trl", "ray", "bitsandbytes", "numpy", "pytest"} <= shared
    assert not [name for name in shared if PINS["cpu"][name] != PINS["gpu"][name]]


def test_a_stale_lock_is_named(tmp_path):
    plan = PLANS["cpu"]
    changed = copy.copy(plan)
    changed.file = tmp_path / "requirements-cpu.txt"
    text = plan.file.read_text().replace("transformers==5.17.0", "transformers==5.16.0")
    text = text.replace("rich==", "poor==") + "triton==3.9.0\n"
    changed.file.write_text(text)
    assert lock.faults(changed) == [
        "requirements-cpu.txt: rich is missing: run `make lock`",
        "requirements-cpu.txt: transformers==5.16.0 does not satisfy ==5.17.0",
        "requirements-cpu.txt: triton is excluded by pyproject.toml",
    ]
    changed.wanted = [*plan.wanted, "new-dependency"]
    assert "older than pyproject.toml" in lock.faults(changed)[0]

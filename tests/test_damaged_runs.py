"""Reports of run folders that a disk, another program, or somebody hostile has had a hand in."""

import json
import re

import pytest
from fuzz import listing
from report_runs import make_run
from runs_compared import rows

from unslothrl.checkpoints.store import RunState
from unslothrl.commands import cli
from unslothrl.runs.resume import EarlierRun
from unslothrl.tracking.report.page import write_report
from unslothrl.tracking.run_folder import RunFolder

LARGEST = 1.7976931348623157e308


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[1]", "metrics.jsonl, line 1 is no object"),
        (b'{"reward/mean": 1}', "metrics.jsonl, line 1 has no step"),
        (b"[" * 5000, "metrics.jsonl, line 1 is not JSON"),
        (b"\xff", "metrics.jsonl, line 1 is not JSON"),
    ],
)
def test_a_line_of_metrics_that_is_none_is_named(tmp_path, capsys, line, said):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_bytes(line + b"\n")
    assert cli.main(["report", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize("value", [10**400, -LARGEST, float("inf")])
def test_numbers_beyond_all_floats_and_at_their_end_have_a_page_that_is_read(tmp_path, value):
    run = make_run(tmp_path / "run", 3)
    metrics = [{**row, "reward/mean": value, "timing/step_s": value} for row in run.read_metrics()]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    path = run.path / "rollouts/step_000001.jsonl"
    row, *_ = rows(path)
    row["rewards"]["accuracy"] = value
    path.write_text(json.dumps(row) + "\n")
    carried = re.findall("<figure [^>]*?data-values='(.*?)'", write_report(run).read_text())
    assert carried and all("Infinity" not in values and "NaN" not in values for values in carried)


def test_copies_of_files_beside_the_runs_own_are_left_alone(tmp_path):
    run = make_run(tmp_path / "run", 2)
    for folder in ("rollouts", "evals"):
        original = run.path / folder / "step_000002.jsonl"
        (run.path / folder / "step_000002 (copy).jsonl").write_bytes(original.read_bytes())
        (run.path / folder / "step_x.jsonl").write_text("rubbish\n" if folder == "rollouts" else "")
    assert run.steps_of("rollouts") == [1, 2] and run.steps_of("evals") == [0, 2]
    assert "evals/step_000002.jsonl" in write_report(run).read_text()
    run.truncate_after(1, 1, 1)
    assert run.steps_of("rollouts") == [1]
    assert (run.path / "rollouts" / "step_000002 (copy).jsonl").exists()


def test_the_newest_checkpoint_is_a_folder_of_the_runs_own(tmp_path):
    checkpoints = RunFolder.create(tmp_path, "run", "").checkpoints
    for step in (9, 999_999, 1_000_000):
        checkpoints.write(RunState(step=step), b"")
    (checkpoints.folder / "step_2000000").touch()
    (checkpoints.folder / "step_2000000 (copy)").mkdir()
    for text in (b"step_1000000\n", b"\xff\xfe", b"../../run", b"", b"step_000009"):
        (checkpoints.folder / "latest").write_bytes(text)
        (checkpoints.folder / "best").write_bytes(text)
        assert checkpoints.newest(pytest.fail).state.step == 1_000_000
    checkpoints.write(RunState(step=1_000_001), b"")
    assert checkpoints.steps() == [1_000_000, 1_000_001]


def test_tokens_that_are_not_a_runs_stay_data(tmp_path):
    run = make_run(tmp_path / "run", 1)
    row = {"row": 0, "pieces": ["</script><b>"], "logprobs": ["<i>"], "left_out": 0, "x": "<u>"}
    (run.path / "tokens" / "step_000001.jsonl").write_text(json.dumps(row) + "\n")
    text = write_report(run).read_text()
    assert "</script><b>" not in text and "<i>" not in text and "<u>" not in text


@pytest.mark.parametrize("status", [["x"], "\x1b[31mred", None])
def test_a_list_of_runs_has_a_line_for_each(tmp_path, capsys, status):
    make_run(tmp_path / "bad\x1b]0;x\x07", 1).write_summary({"status": status})
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "metrics.jsonl").write_text('{"step": 1, "timing/step_s": "x"}\n{}\n')
    make_run(tmp_path / "good", 1)
    assert cli.main(["report", str(tmp_path)]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.isprintable() for line in lines)
    assert {"killed", "damaged"} <= {line.split()[1] for line in lines if line[0] != "b"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.toml", "lr = ٣\n"), ("summary.json", "[" * 100_000), ("metrics.jsonl", "{\n")],
)
def test_nothing_is_written_of_a_run_with_a_damaged_file(name, text, tmp_path, capsys):
    run = make_run(tmp_path / "run", 1)
    (run.path / name).write_text(text)
    before = listing(run.path)
    assert cli.main(["report", str(run.path)]) == 2
    assert "damaged" in capsys.readouterr().err
    assert listing(run.path) == before
    if name == "summary.json":  # a resume continues without it
        assert EarlierRun(run, None, (), ()).has_finished() is False

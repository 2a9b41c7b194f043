"""Reports of run folders that a disk, another program, or somebody hostile has had a hand in."""

import json
import re
import time
from pathlib import Path

import pytest
from report_runs import make_run

from unslothrl.checkpoints.run_state import RunState
from unslothrl.commands import cli
from unslothrl.config.options import Config
from unslothrl.earlier_run import EarlierRun
from unslothrl.tracking import charts, metrics
from unslothrl.tracking.charts import Curve
from unslothrl.tracking.report import document, overview, page, signs, steps
from unslothrl.tracking.report.page import write_report
from unslothrl.tracking.run_folder import RunFolder

LARGEST = 1.7976931348623157e308


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", "metrics.jsonl, line 1 is no object"),
        ('{"reward/mean": 1}', "metrics.jsonl, line 1 has no step"),
        ('{"step": NaN}', "metrics.jsonl, line 1 has no step"),
        ('{"step": "1"}', "metrics.jsonl, line 1 has no step"),
        ("[" * 5000, "metrics.jsonl, line 1 is not JSON"),
        ("\udcff", "metrics.jsonl, line 1 is not JSON"),
    ],
)
def test_a_line_of_metrics_that_is_none_is_named(tmp_path, capsys, line, said):
    (tmp_path / "run").mkdir()
    text = line.encode("utf-8", "surrogateescape") + b"\n"
    (tmp_path / "run" / "metrics.jsonl").write_bytes(text)
    assert cli.main(["report", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize("value", [10**400, LARGEST, -LARGEST, 1e-320, float("inf")])
def test_numbers_beyond_all_floats_and_at_their_end_have_a_page_that_is_read(tmp_path, value):
    run = make_run(tmp_path / "run", 3)
    rows = [{**row, "reward/mean": value, "timing/step_s": value} for row in run.read_metrics()]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (row, *_) = rows_of(run.path / "rollouts/step_000001.jsonl")
    row["rewards"]["accuracy"] = value
    (run.path / "rollouts/step_000001.jsonl").write_text(json.dumps(row) + "\n")
    text = write_report(run).read_text()
    carried = re.findall("<figure data-values='(.*?)'", text)
    assert carried and all("Infinity" not in values and "NaN" not in values for values in carried)


def test_numbers_are_finite_and_no_larger_than_a_float():
    assert not metrics.is_number(10**400) and not metrics.is_number(float("nan"))
    assert metrics.is_number(10**300) and metrics.is_number(True)
    assert charts.rounded(LARGEST) == LARGEST and charts.rounded(1.234567) == 1.2346
    assert "Infinity" not in charts.lines("x", [Curve("x", [(1, LARGEST), (2, 0.0)])])


def test_copies_of_files_beside_the_runs_own_are_left_alone(tmp_path):
    """A file manager's names: step_000002 (copy).jsonl."""
    run = make_run(tmp_path / "run", 2)
    for folder in ("rollouts", "evals"):
        original = run.path / folder / "step_000002.jsonl"
        (run.path / folder / "step_000002 (copy).jsonl").write_bytes(original.read_bytes())
        (run.path / folder / "step_x.jsonl").write_text("rubbish\n" if folder == "rollouts" else "")
    assert run.rollout_steps() == [1, 2] and run.evaluation_steps() == [0, 2]
    assert "Evaluation after step 2" in write_report(run).read_text()
    run.truncate_after(1)
    assert run.rollout_steps() == [1]
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


def test_scripts_of_others_are_not_deleted(tmp_path, capsys):
    run = make_run(tmp_path / "run", 1)
    write_report(run)
    (run.path / "report" / "mine.js").write_text("1")
    (run.path / "report" / "step_000777.js").write_text("1")  # of a step that is no more
    write_report(run)
    names = {path.name for path in (run.path / "report").iterdir()}
    assert "mine.js" in names and "step_000777.js" not in names
    elsewhere = tmp_path / "elsewhere"
    (run.path / "report").rename(elsewhere)
    (run.path / "report").symlink_to(elsewhere)
    (elsewhere / "step_000777.js").write_text("1")
    assert cli.main(["report", str(run.path)]) == 2
    assert f"{run.path / 'report'} is a link: remove it" in capsys.readouterr().err
    assert (elsewhere / "step_000777.js").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda first, call: f"{first}\nalert(1);{call}\n",
        lambda first, call: f"{first}\n{call}alert(1);\n",
        lambda first, call: f"{first}\n{call}\nalert(1);\n",
        lambda first, call: f"{first}\ralert(1);\n{call}\n",
        lambda first, call: f"{first}\n{call[:-2]}, alert(1));\n",
        lambda first, call: f"{first}\n{call.replace('{', '{[alert(1)]:0,', 1)}\n",
        lambda first, call: f"{first}\n{call[:-2]}\u2028);\n",
        lambda first, call: f"{first}\nunslothrlShow('x', {'[' * 100_000});\n",
    ],
)
def test_a_script_that_does_more_than_to_hand_over_its_value_is_written_again(tmp_path, change):
    """A run's folder may come from elsewhere, with scripts that look as new as their files."""
    run = make_run(tmp_path / "run", 1)
    script = run.path / "report" / "step_000001.js"
    script.unlink(missing_ok=True)  # that of a run has tokens, which its files lack
    write_report(run)
    own = script.read_text()
    first, call = own.splitlines()
    script.write_text(change(first, call), encoding="utf-8")
    write_report(run)
    assert script.read_text() == own
    (tmp_path / "elsewhere.js").write_text(own)
    script.unlink()
    script.symlink_to(tmp_path / "elsewhere.js")
    write_report(run)
    assert script.read_text() == own and not script.is_symlink()


def test_a_file_that_a_resume_deletes_meanwhile_is_left_out(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", 2)
    listed = steps._sources(run)
    run.truncate_after(1)
    monkeypatch.setattr(steps, "_sources", lambda folder: listed)
    assert list(steps.update(run)) == ["step_000001", "eval_000000"]


def test_a_fifo_is_not_waited_for(tmp_path):
    import os

    run = make_run(tmp_path / "run", 1)
    (run.path / "metrics.jsonl").unlink()
    os.mkfifo(run.path / "metrics.jsonl")
    assert run.read_metrics() == []


@pytest.mark.parametrize("content", ["[1]", "{", "[" * 100_000, None])
def test_a_summary_that_is_none_is_said_and_a_resume_goes_on_without_it(tmp_path, capsys, content):
    """None: a pipe, which nothing waits for."""
    import os

    run = make_run(tmp_path / "run", 1)
    summary = run.path / "summary.json"
    summary.unlink(missing_ok=True)
    if content is None:
        os.mkfifo(summary)
    else:
        summary.write_text(content)
    assert cli.main(["report", str(run.path)]) == 2
    assert "a file of the run is damaged" in capsys.readouterr().err
    assert EarlierRun(run, None, (), ()).has_finished(Config()) is False


@pytest.mark.parametrize("status", [5, ["x"], {"a": 1}, "\x1b[31mred", None])
def test_a_list_of_runs_has_a_line_for_each(tmp_path, capsys, status):
    run = make_run(tmp_path / "bad\x1b]0;x\x07", 1)
    run.write_summary({"status": status})
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "metrics.jsonl").write_text('{"step": 1, "timing/step_s": "x"}\n{}\n')
    make_run(tmp_path / "good", 1)
    assert cli.main(["report", str(tmp_path)]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.isprintable() for line in lines)


def test_links_name_files_whatever_they_are_called(tmp_path):
    assert document.address("a b/c#d?e%f.html") == "a%20b/c%23d%3Fe%25f.html"
    assert document.address("\udcff/x") == "%FF/x" and document.address("a:b") == "a%3Ab"
    runs = [make_run(tmp_path / name, 1) for name in ("a#1?", "50% b")]
    for run in runs:
        write_report(run)
    path = tmp_path / "both.html"
    assert cli.main(["report", *(str(run.path) for run in runs), "--output", str(path)]) == 0
    text = path.read_text()
    assert 'href="a%231%3F/report.html"' in text and 'href="50%25%20b/report.html"' in text


def test_a_comparison_replaces_pages_alone(tmp_path, capsys):
    runs = [str(make_run(tmp_path / name, 1).path) for name in ("a", "b")]
    target = tmp_path / "a" / "metrics.jsonl"
    before = target.read_bytes()
    assert cli.main(["report", *runs, "--output", str(target)]) == 2
    assert "exists and is no page" in capsys.readouterr().err
    assert target.read_bytes() == before
    page_file = tmp_path / "c.html"
    for _ in range(2):
        assert cli.main(["report", *runs, "--output", str(page_file)]) == 0


def test_runs_with_long_names_in_other_scripts_are_compared(tmp_path, capsys):
    runs = [str(make_run(tmp_path / (sign * 60), 1).path) for sign in "漢字"]
    assert cli.main(["report", *runs]) == 0
    name = Path(capsys.readouterr().out.strip()).name
    assert name.startswith("漢漢") and len(name.encode()) <= 105


def test_an_evaluation_is_read_once_however_many_sets_it_has(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", 1)
    (row, *_) = rows_of(run.path / "evals/step_000000.jsonl")
    names = [f"set{i}" for i in range(300)]
    for step in (0, 1):
        run.write_evaluation(f"step_{step:06d}", [{**row, "set": name} for name in names])
        run.log({"step": step, **{f"eval/{name}/pass@1": step / 2 for name in names}})
    reads = []
    real = overview.read_jsonl
    monkeypatch.setattr(overview, "read_jsonl", lambda path: reads.append(path) or real(path))
    started = time.perf_counter()
    text = page.report(run, page.Written.read(run), page.steps.update(run)).decode()
    assert len(reads) == 2 and all(f"<small>{name}</small>" in text for name in names)
    assert time.perf_counter() - started < 30


def test_the_name_of_a_set_cannot_reverse_its_chart():
    drawn = charts.lines("set \u202e", [Curve("a\u202eb<i>", [(1, 1.0)]), Curve("c", [(1, 2.0)])])
    assert "\u202e" not in drawn and "a?b&lt;i&gt;" in drawn


def test_a_very_long_run_is_judged_at_once():
    """Means over a tenth of its steps, at every step, would take minutes."""
    count = 100_000
    rising = [{"step": i, "reward/mean": i / count} for i in range(count)]
    started = time.process_time()
    assert signs.collapse(rising, {}) is None
    fallen = [*rising, *({"step": count + i, "reward/mean": 0.1} for i in range(count // 4))]
    found = signs.collapse(fallen, {})
    assert time.process_time() - started < 10
    assert re.search(r"from 0\.9\d\d at about step 99\d\d\d to 0\.100\.", found.seen)


@pytest.mark.parametrize("name", ["config.toml", "summary.json", "metrics.jsonl"])
def test_nothing_is_written_of_a_run_with_a_damaged_file(name, tmp_path, capsys):
    run = make_run(tmp_path / "run", 1)
    (run.path / name).write_text("lr = ٣\n" if name == "config.toml" else "{\n")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert cli.main(["report", str(run.path)]) == 2
    assert "damaged" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before

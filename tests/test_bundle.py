"""The archive for a bug report: what is in it, and what is not."""

import json
import os
import tarfile
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_redaction import PLANTED

from unslothrl.commands import bundle, cli
from unslothrl.commands.doctor import Check
from unslothrl.text import HIDDEN

CHECKS = [Check("card", "ok", "none")]


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    """The logs of this machine's Ray are none of these runs'."""
    monkeypatch.setenv("RAY_TMPDIR", "/nonexistent")


def run_at(folder: Path, **texts: str) -> Path:
    """A run's folder; of each name the first _ is a dot."""
    run = folder / "a-run"
    run.mkdir(exist_ok=True)
    (run / "config.toml").write_text("lr = 1e-5\n")
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    for name, text in texts.items():
        (run / name.replace("_", ".", 1)).write_text(text)
    return run


def members(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as file:
        return {each.name: file.extractfile(each).read().decode() for each in file.getmembers()}


FILES = ("config.toml", "run.json", "summary.json", "metrics.jsonl", "error.txt", "train.log",
         "trackers.json")  # fmt: skip
# Shorter than any secret, so that it holds none.
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=15)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(FILES), st.tuples(LINE, PLANTED, LINE), min_size=1))
def test_no_planted_secret_is_in_any_file_of_the_archive(planted):
    with tempfile.TemporaryDirectory() as name:
        run = run_at(Path(name))
        for file, (before, (_, text), after) in planted.items():
            (run / file).write_text(f"{before}\n{text}\n{after}", encoding="utf-8")
        texts = bundle.texts(run, CHECKS)
        archive = Path(name) / "b.tar.gz"
        bundle.write(archive, "b", texts)
        held = members(archive)
        assert {f"b/{file}" for file in planted if file != "train.log"} <= {*held}
        for secret in (secret for _, (secret, _), _ in planted.values()):
            assert not any(secret in text or secret in name for name, text in held.items())


@pytest.mark.parametrize("most", range(150, 290, 3))
def test_a_secret_is_hidden_wherever_a_long_file_is_cut(most, tmp_path):
    """Before it, within it and after it: nowhere is its second half met alone."""
    secret = "hf_" + "Abc123" * 10
    text = "x" * 300 + f" {secret} " + "y" * 60 + "\n" + "z" * 150
    (tmp_path / "a.log").write_text(text)
    with mock.patch.object(bundle, "MOST_BYTES", most):
        end = bundle.end_of(tmp_path / "a.log")
    assert secret[-9:] not in bundle.clean(end)


def test_a_secret_variable_and_the_home_folder_are_in_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_PASSWORD", "correct horse")
    monkeypatch.setenv("HOME", str(tmp_path))
    text = f"{tmp_path}/models and {tmp_path}-2, correct horse, correct%20horse"
    error = bundle.texts(run_at(tmp_path, error_txt=text), CHECKS)["error.txt"]
    assert error == f"~/models and {tmp_path}-2, {HIDDEN}, {HIDDEN}"


def test_links_are_not_followed_and_nothing_waits_for_a_pipe(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "private.log").write_text("private")
    run = run_at(tmp_path)
    for name, target in (("error.txt", "outside/private.log"), ("logs", "outside"), ("loop", run)):
        (run / name).symlink_to(tmp_path / target)
    os.mkfifo(run / "a.log")
    texts = bundle.texts(run, CHECKS)
    assert not any("private" in text for text in texts.values())
    assert "link  'error.txt'" in texts["files.txt"] and "special  'a.log'" in texts["files.txt"]
    assert "error.txt" not in texts


def test_of_large_files_the_end_is_taken(tmp_path):
    rows = "".join(json.dumps({"step": step}) + "\n" for step in range(20_000))
    run = run_at(tmp_path, metrics_jsonl=rows, train_log="begin\n" + "line\n" * 200_000 + "end\n")
    (run / "bad_batch_000012.jsonl").write_text("[1]" * 1000)
    texts = bundle.texts(run, CHECKS)
    cut, *lines = texts["metrics.jsonl"].splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert cut + "\n" == bundle.CUT and steps == list(range(20_000 - len(steps), 20_000))
    assert texts["logs/00-train.log"].endswith("line\nend\n")
    assert all(len(text) < 66 << 10 for text in texts.values())
    assert "3,000  'bad_batch_000012.jsonl'" in texts["files.txt"]
    assert texts["doctor.txt"] == "ok       card           none\n"


def test_the_command_writes_an_archive_and_refuses_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unslothrl.commands.bundle.examine", lambda self_test: CHECKS)
    rollouts = run_at(tmp_path) / "rollouts"
    rollouts.mkdir()
    (rollouts / "step_000001.jsonl").write_text('{"completion": "answer 1"}\n')
    assert cli.main(["bundle", "a-run"]) == 0
    held = members(tmp_path / "a-run-bundle.tar.gz")
    assert held["a-run-bundle/config.toml"] == "lr = 1e-5\n"
    assert not any("answer" in text for text in held.values())
    assert cli.main(["bundle", "a-run", "--output", "b.tgz"]) == 0
    assert members(tmp_path / "b.tgz")["a-run-bundle/doctor.txt"].startswith("ok")
    capsys.readouterr()
    for arguments, said in ((["a-run", "--output", "b.tgz"], "exists"), (["."], "no run's folder")):
        assert cli.main(["bundle", *arguments]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../../etc/x", "a b\n", "...", ""])
def test_no_name_leaves_the_archive_s_folder(name):
    assert "/" not in bundle.safe(name) and bundle.safe(name).strip(".")

"""Whatever is damaged of what a command reads, it loads something valid or ends in one line with
exit code 2, before a worker starts and with every file as it was."""

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import adapters
import fuzz
import pytest
from few_cases import few
from stopped_run import template
from test_damaged_resumes import go_on

from unslothrl import cluster
from unslothrl.backends import peft
from unslothrl.commands import cli
from unslothrl.errors import RunError, UserError

pytestmark = pytest.mark.real
MOST_S = 10.0  # seconds of CPU: other work on the machine does not count
NOTES = ("run/.lock", "run/report", "run/report.html")  # what a command may write beside


@pytest.fixture
def reached(monkeypatch, tmp_path) -> list[bool]:
    """Grows where a worker would start or a model be loaded, and the command ends there."""
    monkeypatch.chdir(tmp_path)
    found: list[bool] = []

    def stop(*_, **__):
        found.append(True)
        raise RunError("here a worker would start")

    monkeypatch.setattr(cluster, "start", stop)
    monkeypatch.setattr(peft, "load", stop)
    return found


@pytest.mark.parametrize("cases", few([40, 1000]))
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_what_is_damaged_is_loaded_or_refused_in_one_line(kind, cases, reached, tmp_path, capsys):
    ended: Counter[str] = Counter()
    wrong = []
    for number in range(cases):
        folder = tmp_path / str(number)
        words = fuzz.make(kind, number, folder)
        before, started = fuzz.listing(folder), time.process_time()
        capsys.readouterr()
        reached.clear()
        try:
            code: object = cli.main(words)
        except Exception as error:
            code = repr(error)
        err = capsys.readouterr().err
        if code == 0 or (code == 1 and reached):
            ended["accepted"] += 1
        elif code == 2 and err.startswith("unslothrl: ") and err.count("\n") == 1:
            ended["refused"] += 1
            differ = {name for name, _ in before.items() ^ fuzz.listing(folder).items()}
            wrong += [(number, name) for name in sorted(differ) if not name.startswith(NOTES)]
        else:
            wrong.append((number, words, code, err[-300:]))
        if time.process_time() - started > MOST_S:
            wrong.append((number, words, "takes long"))
    assert wrong == []
    assert min(ended["refused"], ended["accepted"]) >= 2, ended


@pytest.mark.parametrize("cases", few([40, 1000]))
def test_a_damaged_checkpoint_is_refused_or_the_one_before_it_is_used(cases, tmp_path):
    """Where only one file of a checkpoint is damaged its checksum tells."""
    used: Counter[int] = Counter()
    for number in range(cases):
        folder = fuzz.damaged_checkpoint(number, tmp_path / str(number))
        try:
            used[go_on(folder).step] += 1
        except UserError as error:
            assert "\n" not in str(error)
            used[0] += 1
    assert used[3] > cases / 2, used


ODD: dict[str, Callable[[Path], None]] = {
    "zeros": lambda path: (path.touch(), os.truncate(path, 2 << 30)),  # which take no room
    "a loop": lambda path: path.symlink_to(path.name),
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
}
PLACES = {  # a file, and the command that reads it
    "problems.jsonl": ("score", "--reward=accuracy", "problems.jsonl"),
    "problems.parquet": ("data", "problems.parquet", "--model=embedded"),
    "recipe.toml": ("--recipe=recipe.toml",),
    "adapter/adapter_model.safetensors": ("ask", "x", "--adapter=adapter"),
    "run/config.toml": ("--resume=run",),
    "run/checkpoints/step_000004/SHA256SUMS": ("--resume=run",),
}


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/zero")
@pytest.mark.parametrize("odd", ODD)
def test_a_file_without_end_is_refused_at_once(odd, reached, tmp_path, capsys):
    for name, words in PLACES.items():
        for folder in ("run", "adapter"):
            shutil.rmtree(tmp_path / folder, ignore_errors=True)
        if name.startswith("run/"):
            shutil.copytree(template(), tmp_path / "run")
            shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_000003")
        if name.startswith("adapter/"):
            adapters.write(tmp_path / "adapter")
        (tmp_path / name).unlink(missing_ok=True)
        ODD[odd](tmp_path / name)
        capsys.readouterr()
        started = time.process_time()
        assert cli.main(list(words)) == 2, name
        err = capsys.readouterr().err
        assert err.startswith("unslothrl: ") and err.count("\n") == 1, (name, err)
        assert time.process_time() - started < MOST_S and not reached, name

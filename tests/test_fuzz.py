"""Whatever is damaged of what a command reads, it loads something valid or ends in one line with
exit code 2, before a worker starts and with every file as it was."""

import time
from collections import Counter

import fuzz
import pytest
from few_cases import few
from test_damaged_resumes import go_on

from unslothrl import cluster
from unslothrl.commands import chat, cli
from unslothrl.errors import RunError, UserError

pytestmark = pytest.mark.real
MOST_S = 10.0  # seconds of CPU: other work on the machine does not count
NOTES = ("run/.lock", "run/report", "run/report.html")  # what a command may write beside


@pytest.fixture
def reached(monkeypatch, tmp_path) -> list[bool]:
    """Grows where a worker would start or a model be loaded, and the command ends there."""
    monkeypatch.chdir(tmp_path)
    found: list[bool] = []

    def stop(*_):
        found.append(True)
        raise RunError("here a worker would start")

    monkeypatch.setattr(cluster, "start", stop)
    monkeypatch.setattr(chat, "load_engine", stop)
    return found


@pytest.mark.parametrize("cases", few([40, 1000]))
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_what_is_damaged_is_loaded_or_refused_in_one_line(kind, cases, reached, tmp_path, capsys):
    ended: Counter[str] = Counter()
    wrong = []
    for number in range(cases):
        folder = tmp_path / str(number)
        case = fuzz.make(kind, number, folder)
        before, started = fuzz.listing(folder), time.process_time()
        capsys.readouterr()
        reached.clear()
        try:
            code: object = cli.main(list(case.words))
        except Exception as error:
            code = repr(error)
        err = capsys.readouterr().err
        if code == 0 or (code == 1 and reached):
            ended["accepted"] += 1
        elif code == 2 and err.startswith("unslothrl: ") and err.count("\n") == 1:
            ended["refused"] += 1
            wrong += [(number, case.words, name) for name in changed(before, fuzz.listing(folder))]
        else:
            wrong.append((number, case.words, code, err[-300:]))
        if time.process_time() - started > MOST_S:
            wrong.append((number, case.words, "takes long"))
    assert wrong == []
    assert min(ended["refused"], ended["accepted"]) >= 2, ended


def changed(before: dict, after: dict) -> list[str]:
    return [
        name
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name) and not name.startswith(NOTES)
    ]


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


def test_a_case_is_a_function_of_its_number(tmp_path):
    for kind in fuzz.KINDS:
        first, second = (tmp_path / name / kind for name in "ab")
        cases = [fuzz.make(kind, 7, folder) for folder in (first, second)]
        assert str(cases[0].words).replace(str(first), "") == str(cases[1].words).replace(
            str(second), ""
        )
        assert fuzz.listing(first).keys() == fuzz.listing(second).keys()

"""Recipes, data files, adapters, checkpoints and run folders that are wrong in every way, through
the functions that the commands call: a valid load, or one line, and no file changed.

300 cases here; `python bench/mutated_files.py` reads 10,000 of each kind."""

import sys
import time
import warnings
from collections import Counter

import mutated_files
import mutated_reading
import pytest

from unslothrl.errors import UserError

pytestmark = [
    pytest.mark.real,  # the embedded base's tokenizer
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]
CASES = 60  # of each kind


@pytest.mark.parametrize("kind", mutated_files.KINDS)
def test_what_is_wrong_is_one_line_and_changes_nothing(kind, tmp_path):
    ended: Counter[str] = Counter()
    wrong = []
    for number in range(CASES):
        case = mutated_files.make(kind, number, tmp_path / str(number))
        verdict = mutated_reading.examine(case)
        mutated_files.clean(case)
        ended[verdict.ended] += 1
        wrong += [verdict] * (verdict.ended == "wrong")
    assert wrong == []
    assert min(ended["refused"], ended["accepted"]) >= 2, ended


def test_a_case_is_a_function_of_its_number(tmp_path):
    for kind in mutated_files.KINDS:
        cases = [mutated_files.make(kind, 7, tmp_path / name / kind) for name in "ab"]
        first, second = (mutated_reading.listing(case.folder) for case in cases)
        assert first.keys() == second.keys() and len(first) > 4


def raises(error):
    def way(case):
        raise error

    return way


def writes(name):
    def way(case):
        (case.folder / name).write_text("changed")

    return way


def warns(case):
    warnings.warn("careful", RuntimeWarning, stacklevel=1)


def takes_memory(case):
    bytearray(600 << 20)


WRONG = {
    "an exception": (raises(KeyError("x")), "KeyError: 'x'"),
    "no file named": (raises(UserError("it is damaged")), "it names no file"),
    "a file changed": (writes("run/run.json"), "'run/run.json' was changed"),
    "a file left": (writes("run/.new"), "'run/.new' was changed"),
    "the user's own": (writes("outside/notes.txt"), "is outside, and changed"),
    "a warning": (warns, "warning RuntimeWarning: careful"),
    "memory": (takes_memory, " MB"),
    "a hang": (lambda case: time.sleep(9), "it hangs"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_right_is_seen(name, tmp_path, monkeypatch):
    way, said = WRONG[name]
    monkeypatch.setitem(mutated_reading.WAYS, "run", (way,))
    monkeypatch.setattr(mutated_reading, "HANGS_S", 0.5 if name == "a hang" else 30)
    verdict = mutated_reading.examine(mutated_files.make("run", 0, tmp_path / "case"))
    assert verdict.ended == "wrong" and said in verdict.message

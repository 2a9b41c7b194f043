"""Recipes, flags and adapters that are wrong in every way, through the commands in this process:
one line and exit code 2, or accepted, which ends where the first worker would start.

The first 300 of a thousand run by `make test`, all of them by `make mutation-test`."""

import sys
import time
from collections import Counter

import mutations
import pytest
from mutated_reading import peak_mb, reset_peak

from unslothrl import cluster
from unslothrl.commands import answering, cli
from unslothrl.errors import RunError

pytestmark = pytest.mark.real

MOST_S, MOST_MB = 10, 1024  # seconds of CPU: other work on the machine does not count
HANGS_S = 60  # seconds by the clock


@pytest.fixture
def reached(monkeypatch, tmp_path) -> list[bool]:
    """Grows where a worker would start or a model be loaded, and the command ends there."""
    monkeypatch.chdir(tmp_path)  # a flag without its value can name any folder
    found: list[bool] = []

    def stop(*_):
        found.append(True)
        raise RunError("here a worker would start")

    monkeypatch.setattr(cluster, "start", stop)
    monkeypatch.setattr(answering, "load_engine", stop)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("cases", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_mutations_are_refused_in_one_line_or_accepted(cases, reached, tmp_path, capsys):
    ended: Counter[tuple[str, str]] = Counter()
    wrong = []
    for number in range(cases):
        folder = tmp_path / str(number)
        case = mutations.make(number, folder)
        capsys.readouterr()
        reached.clear()
        reset_peak()
        before, started, began = peak_mb(), time.process_time(), time.perf_counter()
        try:
            code: object = cli.main(case.arguments)
            code = "accepted" if reached and code == 1 else code
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
        seconds, took = time.process_time() - started, peak_mb() - before
        waited = time.perf_counter() - began
        err = capsys.readouterr().err
        is_one_line = err.startswith("unslothrl: ") and err.count("\n") == 1
        if code not in (0, "accepted") and not (code == 2 and is_one_line):
            wrong.append((number, case.kind, code, err[-300:]))
        if seconds > MOST_S or waited > HANGS_S or took > MOST_MB:
            wrong.append((number, case.kind, f"{seconds:.1f} s, {took:.0f} MB", err[-300:]))
        ended[case.kind, "refused" if code == 2 else "accepted"] += 1
        mutations.clean(folder)
    assert wrong == []
    assert (
        min(ended[kind, "refused"] for kind in ("recipe", "flags", "adapter", "ask")) > cases / 20
    ), ended
    assert sum(ended[kind, "accepted"] for kind, _ in ended) > cases / 20, ended

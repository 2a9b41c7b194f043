"""Secrets in what a run prints and in the traceback that it leaves."""

import io

import pytest
from rich.console import Console

from unslothrl.cluster import causes
from unslothrl.commands import cli
from unslothrl.text import HIDDEN
from unslothrl.tracking.run_folder import ERROR, RunFolder
from unslothrl.tracking.terminal import Terminal

TOKEN = "hf_" + "a1B2" * 8
WITH_PASSWORD = "https://me:pass-word@host.example/rows.jsonl"
SHOWN = f"https://{HIDDEN}@host.example/rows.jsonl"


@pytest.mark.parametrize("live", [False, True])
def test_whatever_a_run_prints_is_without_secrets(live, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_PASSWORD", "correct horse")
    out = io.StringIO()
    console = Console(file=out, force_terminal=live, width=200, highlight=False)
    said = f"{WITH_PASSWORD} {TOKEN} correct horse"
    with Terminal(console=console, live=live) as view:
        view.header([said, said])
        view.stage(f"reading {said}")
        view.progress(f"reading {said}", 1, 2)
        if view.live is not None:
            view.live.refresh()
        view.note(said)
        view.failed(said, [("resume", said)])
    text = out.getvalue()
    assert not any(secret in text for secret in ("pass-word", TOKEN, "correct horse"))
    assert text.count(HIDDEN) >= 15


def test_a_traceback_is_without_the_secrets_of_the_shell_that_it_came_from(tmp_path, monkeypatch):
    """Who makes an archive of it later may not have the variable any more."""
    monkeypatch.setenv("MY_SERVICE_PASSWORD", "correct horse")
    try:
        raise OSError(f"{WITH_PASSWORD}: Authorization: Basic QWxhZGRpbg said correct horse")
    except OSError as error:
        summary = causes.summary_of(error)
        RunFolder(tmp_path).write_error(error)
    monkeypatch.delenv("MY_SERVICE_PASSWORD")
    said = f"OSError: {SHOWN}: Authorization: {HIDDEN} said {HIDDEN}"
    assert summary.startswith(f"{said} (test_secrets_said.py, line ")
    assert (tmp_path / ERROR).read_text().endswith(f"{said}\n")


def test_what_nobody_foresaw_ends_with_a_short_cause(monkeypatch, capsys):
    def fails(arguments):
        raise KeyError(f"\x1b[2J {WITH_PASSWORD} token={TOKEN}")

    monkeypatch.setattr(cli, "answer", fails)
    assert cli.main([]) == cli.FAILED
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):\n")
    last = said.splitlines()[-1]
    assert last.startswith("unslothrl: internal error, KeyError: ")
    assert "(test_secrets_said.py, line " in last and "report it" in last
    assert "pass-word" not in said and TOKEN not in said and "\x1b" not in said

"""The program whose streams are closed, full, or read by something that stops early."""

import os
import shlex
import subprocess
import sys

import pytest
from few_cases import few

from unslothrl.commands import cli


@pytest.mark.real
@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_a_reader_that_has_gone_is_met_in_silence(flag):
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with os.fdopen(write_fd, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "unslothrl", flag],
            stdout=closed, stderr=subprocess.PIPE, text=True, timeout=100,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (cli.FAILED, "")


@pytest.mark.real
@pytest.mark.parametrize(
    ("words", "code"),
    few(
        [
            ("--help > /dev/full", cli.FAILED),
            ("chat --adapter nowhere <&-", cli.USAGE),
            ("--version <&-", 0),
            ("chat --adapter nowhere 2>&-", cli.USAGE),
            ("--version 2>&-", 0),
        ],
        3,
    ),
)
def test_streams_that_are_full_or_closed(words, code):
    line = f"{shlex.quote(sys.executable)} -m unslothrl {words}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=100)
    assert done.returncode == code and done.stderr.count("\n") <= 1


def test_what_a_message_quotes_does_not_steer_the_terminal(capsys, tmp_path):
    """A row's columns are the data set's."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"\\u001b]0;owned\\u0007\\u202e": 1, "completion": "x"}\n')
    assert cli.main(["score", str(file), "--reward", "boxed"]) == cli.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable() and "owned" in line


def test_a_current_folder_that_is_gone_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    (tmp_path / "x").rmdir()
    assert cli.main(["recipes"]) == cli.FAILED
    assert capsys.readouterr() == ("", "unslothrl: No such file or directory\n")

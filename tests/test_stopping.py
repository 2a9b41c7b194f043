"""Orderly stops: signals and lost outputs, in processes of their own."""

import os
import shlex
import signal
import subprocess
import sys

import pytest
from few_cases import few

from unslothrl.commands import cli
from unslothrl.system import stopping

pytestmark = pytest.mark.real

PROGRAM = """
import signal, sys, time
from unslothrl.system import stopping
from unslothrl.tracking.terminal import Output
stopping.listen()
out = Output()
try:
    {body}
except stopping.Stopped as stop:
    stopping.begin()
    sys.stderr.write(f"stopped: {{stop}}\\n")
    {after}
    sys.exit(stop.exit_code)
"""
WAITS = "out.write('ready\\n'); out.flush(); time.sleep(60)"
HELD = """
    with stopping.held():
        out.write('ready\\n'); out.flush()
        sys.stdin.readline()
        sys.stderr.write('whole\\n')
    time.sleep(60)
"""
READS = "out.write('ready\\n'); out.flush(); sys.stdin.readline()"
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def started(body: str, after: str = "pass", ignored: tuple[signal.Signals, ...] = (), **how):
    def prepared() -> None:
        for number in stopping.SIGNALS:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | how
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body, after=after)],
        text=True, preexec_fn=prepared, **streams,
    )  # fmt: skip


def ended(process: subprocess.Popen, *signals: signal.Signals) -> tuple[str, int]:
    """Sends signals as soon as it is ready. -> what it says then, and its exit code"""
    process.stdout.readline()
    for number in signals:
        process.send_signal(number)
    return process.communicate("go\n", timeout=20)[1], process.returncode


@pytest.mark.parametrize(
    ("number", "name"), few([(INT, "Ctrl-C"), (TERM, "SIGTERM"), (HUP, "SIGHUP")])
)
def test_each_signal_ends_a_run_by_its_name(number, name):
    assert ended(started(WAITS), number) == (f"stopped: {name}\n", 128 + number)


def test_what_belongs_together_is_done_first():
    said, code = ended(started(HELD), TERM, HUP)
    assert (said, code) in [
        ("whole\nstopped: SIGTERM\n", 128 + TERM), ("whole\nstopped: SIGHUP\n", 128 + HUP)
    ]  # fmt: skip


def test_what_is_ignored_stays_ignored():
    assert ended(started(READS, ignored=(INT, HUP)), INT, HUP) == ("", 0)


def test_while_it_ends_only_a_second_ctrl_c_counts():
    process = started(WAITS, READS)
    process.stdout.readline()
    process.send_signal(TERM)
    said, code = ended(process, TERM, HUP, INT)
    assert "Stopped: Ctrl-C" in said and code != 143


def test_a_closed_pipe_stops_it():
    process = started("while True: out.write('line\\n'); out.flush()", "print('to nobody')")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == 128 + signal.SIGPIPE
    assert process.stderr.read() == "stopped: its output was closed\n"


def test_a_log_on_a_disk_that_becomes_full_stops_nothing(tmp_path):
    """Nothing is said of it until the end, and what fits again is written."""
    body = (
        "out.write('ready\\n'); out.flush(); log = os.dup(1)\n"
        "    full = os.open('/dev/full', os.O_WRONLY); os.dup2(full, 1)\n"
        "    for _ in range(100): out.write('lost ' * 1000); out.flush()\n"
        "    os.dup2(log, 1); out.write('end\\n'); out.flush()"
    )
    with (tmp_path / "log").open("w") as log:
        process = started("import os\n    " + body, stdout=log)
        assert process.communicate(timeout=20) == (None, "") and process.returncode == 0
    text = (tmp_path / "log").read_text()
    assert text.startswith("ready\n") and text.endswith("end\n")


# The program whose streams are closed, full, or read by something that stops early


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

"""Orderly stops: signals and lost outputs, in processes of their own."""

import signal
import subprocess
import sys

import pytest
from few_cases import few

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


def started(body: str, after: str = "pass", ignored: tuple[signal.Signals, ...] = (), **how):
    def prepared() -> None:
        for number in stopping.SIGNALS:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    streams = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **how,
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body, after=after)],
        text=True, preexec_fn=prepared, **streams,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "name"),
    few([(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")]),
)
def test_each_signal_ends_a_run_by_its_name(number, name):
    process = started(WAITS)
    process.stdout.readline()
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert (said, process.returncode) == (f"stopped: {name}\n", 128 + number)


def test_what_belongs_together_is_done_first():
    process = started(HELD)
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate("go\n", timeout=20)
    assert said == "whole\nstopped: SIGTERM\n" or said == "whole\nstopped: SIGHUP\n"
    assert process.returncode in (129, 143)


def test_what_is_ignored_stays_ignored():
    process = started("out.write('ready\\n'); out.flush(); sys.stdin.readline()",
                      ignored=(signal.SIGINT, signal.SIGHUP))  # fmt: skip
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    process.communicate("go\n", timeout=20)
    assert process.returncode == 0


def test_while_it_ends_only_a_second_ctrl_c_counts():
    process = started(WAITS, "out.write('ending\\n'); out.flush(); sys.stdin.readline()")
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert "Stopped: Ctrl-C" in said and process.returncode != 143


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

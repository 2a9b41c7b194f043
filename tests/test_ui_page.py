"""`unslothrl ui` in a headless Chromium, from the first visit to a trained adapter (`make
report-test`). Runs are of the embedded base, a few steps of one process."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import chromium
import psutil
import pytest
from chromium import WIDER, texts, violations
from report_runs import HOSTILE, make_run
from ui_server import Server

from unslothrl.commands import cli
from unslothrl.tracking.report.page import write_report
from unslothrl.tracking.run_folder import CONFIG, LOCK, RunFolder

pytestmark = pytest.mark.slow

RUN_S = 120.0  # of a few steps, with start-up
SMALL = {"batch_size": "4", "num_candidates": "4", "topk": "4", "eval_problems": "4",
         "eval_every": "2", "save_every": "1"}  # fmt: skip
TERMINAL = (
    "train --recipe tiny-cpu --cluster local --engine transformers --number_of_actors 0 "
    "--run_name terminal --max_steps 500"
)
STEPS = "Number(document.getElementById('facts').textContent.match(/steps(\\d+)/)?.[1])"
REPORT = "!document.getElementById('report').hidden"
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowDown": 40, "ArrowUp": 38}
BROKEN = "def reward(completion):\n    raise ValueError('as <b>a reward</b> may ' + 'x' * 100)\n"


@pytest.fixture(scope="module")
def chrome():
    with chromium.Chromium() as found:
        yield found


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path) as found:
        yield found


@pytest.fixture
def browser(chrome, server):
    chrome.problems.clear()
    chrome.look(1280, 900)
    yield chrome
    chrome.open("about:blank")
    refused = "the server responded with a status of 400"  # such as what is typed by halves
    assert [problem for problem in chrome.problems if refused not in problem] == []


def opened(browser, server: Server, run: str = "") -> None:
    browser.open("about:blank")
    browser.open(server.url + (f"#run={run}" if run else ""))
    if not run:
        browser.wait_for("document.querySelector('#plan b') !== null")


def text(browser, name: str) -> str:
    return browser.evaluate(f"document.getElementById('{name}').textContent")


def press(browser, key: str, count: int = 1) -> None:
    known = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
    if key == "Enter":
        known["text"] = "\r"
    for _ in range(count):
        browser.call("Input.dispatchKeyEvent", type="keyDown", **known)
        browser.call("Input.dispatchKeyEvent", type="keyUp", **known)


def tab_to(browser, condition: str) -> None:
    """Until the focus is on what fulfils a condition of `e`."""
    for _ in range(60):
        if browser.evaluate(f"((e) => {condition})(document.activeElement)"):
            return
        press(browser, "Tab")
    raise AssertionError(f"the Tab key does not reach {condition}")


def write(browser, said: str) -> None:
    browser.call("Input.insertText", text=said)


def tell(browser, name: str, value: str) -> None:
    """Types into a field."""
    browser.evaluate(f"document.getElementById('{name}').focus()")
    browser.evaluate(f"document.getElementById('{name}').select()")
    write(browser, value)


def click(browser, name: str) -> None:
    browser.evaluate(f"document.getElementById('{name}').click()")


def begin(browser, name: str, steps: int, **more: str) -> None:
    """Fills in the form and starts a run."""
    tell(browser, "run_name", name)
    tell(browser, "max_steps", str(steps))
    browser.evaluate("document.querySelector('#options details').open = true")
    for option, value in {**SMALL, **more}.items():
        click(browser, "add")
        write(browser, option)
        browser.evaluate(
            "document.querySelector('#more > :last-child label + label input').focus()"
        )
        write(browser, value)
    click(browser, "start")
    browser.wait_for(f"location.hash === '#run={name}'")


def wait_for(browser, expression: str, seconds: float = RUN_S):
    until = time.monotonic() + seconds
    while not (value := browser.evaluate(expression)):
        where = {name: text(browser, name) for name in ("status", "error", "problem", "output")}
        assert time.monotonic() < until, f"never true: {expression}; {where}"
        browser.evaluate("new Promise((done) => setTimeout(done, 100))")
    return value


def wait_for_status(browser, *wanted: str) -> str:
    return wait_for(browser, f"{list(wanted)}.find((e) => e === document.getElementById('status')"
                    ".textContent)")  # fmt: skip


def frames(browser) -> list[str]:
    """The addresses of all pages and frames."""
    targets = browser.call("Target.getTargets")["targetInfos"]
    tree = browser.call("Page.getFrameTree")["frameTree"].get("childFrames", [])
    return [each["url"] for each in targets] + [each["frame"]["url"] for each in tree]


def process_of(folder: Path) -> int:
    return int(re.findall(r"process (\d+)", (folder / LOCK).read_text())[0])


def chats(server: Server) -> list[int]:
    """The processes that answer its questions."""
    found = psutil.process_iter(["ppid", "cmdline"])  # which leaves out what ends meanwhile
    own = (each for each in found if each.info["ppid"] == server.process.pid)
    return [each.pid for each in own if "chat" in (each.info["cmdline"] or ())]


def question(browser, asked: str) -> dict[str, str]:
    """-> the answers to it on the page, by policy"""
    count = len(texts(browser, "#answers > .turn"))
    tell(browser, "question", asked)
    press(browser, "Enter")
    wait_for(browser, f"document.querySelectorAll('#answers > .turn').length > {count}")
    wait_for(browser, "!document.getElementById('send').disabled")
    base, adapter = texts(browser, "#answers > .turn:last-child pre")
    return {"base": base, "adapter": adapter}


def test_from_the_first_visit_to_an_adapter_with_the_keyboard_alone(browser, server, capsys):
    browser.open(server.url)
    browser.wait_for("document.querySelector('#plan b') !== null")
    paints = "performance.getEntriesByType('paint').map((e) => e.startTime)"
    assert 0 < max(browser.evaluate(paints)) < 1000
    assert text(browser, "plan").startswith("It fits")
    tab_to(browser, "e.id === 'max_steps'")
    write(browser, "2")
    press(browser, "Tab")
    write(browser, "mine")
    tab_to(browser, "e.tagName === 'SUMMARY'")
    press(browser, "Enter")
    for option, value in SMALL.items():
        tab_to(browser, "e.id === 'add'")
        press(browser, "Enter")
        write(browser, option)
        press(browser, "Tab")
        write(browser, value)
    tab_to(browser, "e.id === 'start'")
    press(browser, "Enter")
    browser.wait_for("location.hash === '#run=mine'")
    assert wait_for_status(browser, "finished", "failed") == "finished", text(browser, "output")
    assert text(browser, "error") == "" and text(browser, "verdict")
    run = server.folder / "runs" / "mine"
    assert 'engine = "transformers"' in (run / CONFIG).read_text()

    wait_for(browser, REPORT)
    assert any("/report?name=mine&key=" in url for url in frames(browser))
    tab_to(browser, "e.id === 'question'")
    press(browser, "Enter")
    until = time.monotonic() + RUN_S
    while not chats(server):
        assert time.monotonic() < until
    browser.open("about:blank")  # which ends what is answered alone
    while chats(server):
        assert time.monotonic() < until
    opened(browser, server, "mine")
    wait_for(browser, REPORT)
    tab_to(browser, "e.id === 'question'")
    assert browser.evaluate("document.activeElement.value") == "What is 928 - 467?"
    press(browser, "Enter")
    wait_for(browser, "document.querySelectorAll('#answers .turn').length === 1")
    wait_for(browser, "!document.getElementById('send').disabled")
    answers = dict(zip(("base", "adapter"), texts(browser, "#answers pre"), strict=True))
    capsys.readouterr()
    assert cli.main(["ask", str(run), "--base", "What is 928 - 467?"]) == 0
    said = capsys.readouterr().out
    assert said.split("\n\n") == [f"base:\n{answers['base']}", f"adapter:\n{answers['adapter']}\n"]
    assert question(browser, "What is 300 - 120?")["adapter"]
    assert len(texts(browser, "#answers .turn")) == 2

    tab_to(browser, "e.id === 'kind'")
    press(browser, "ArrowDown", 2)
    assert browser.evaluate("document.activeElement.value") == "adapter"
    tab_to(browser, "e.id === 'write'")
    press(browser, "Enter")
    wait_for(browser, "document.getElementById('exported').textContent.startsWith('adapter: ')")
    exported = run / "exports" / "mine-v000002-adapter"
    assert (exported / "adapter_model.safetensors").is_file()
    assert "runs/mine/exports/mine-v000002-adapter" in text(browser, "exported")


def test_a_run_is_stopped_and_goes_on_here_or_in_a_terminal(browser, server):
    opened(browser, server)
    begin(browser, "mine", 500)
    wait_for(browser, f"{STEPS} >= 2")
    click(browser, "stop")
    assert wait_for_status(browser, "interrupted", "failed") == "interrupted"
    folder = RunFolder(server.folder / "runs" / "mine")
    done = folder.read_summary()["steps"]
    browser.open("about:blank")
    opened(browser, server, "mine")  # a reload
    assert wait_for_status(browser, "interrupted")
    tell(browser, "until", str(done + 1))
    click(browser, "resume")
    assert wait_for_status(browser, "finished", "failed") == "finished"
    assert folder.read_summary()["steps"] == done + 1
    words = ["train", "--resume", str(folder.path), "--max_steps", str(done + 2)]
    assert cli.main(words) == 0
    wait_for(browser, f"{STEPS} >= {done + 2}")

    small = [f"--{name}={value}" for name, value in SMALL.items()]
    terminal = subprocess.Popen(
        [sys.executable, "-m", "unslothrl", *TERMINAL.split(), *small], cwd=server.folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(browser, "document.getElementById('runs').textContent.includes('terminalrunning')")
    opened(browser, server, "terminal")
    wait_for(browser, f"{STEPS} >= 2")
    click(browser, "stop")
    assert terminal.wait(60) == 128 + signal.SIGTERM
    assert wait_for_status(browser, "interrupted")
    folder = RunFolder(server.folder / "runs" / "terminal")
    tell(browser, "until", str(folder.read_summary()["steps"] + 1))
    click(browser, "resume")
    assert wait_for_status(browser, "finished", "failed") == "finished"


def test_a_run_goes_on_without_the_page_and_its_server(browser, server):
    opened(browser, server)
    begin(browser, "mine", 500)
    wait_for_status(browser, "running")
    run = server.folder / "runs" / "mine"
    wait_for(browser, f"{STEPS} >= 1")
    trainer, steps = process_of(run), len(RunFolder(run).read_metrics())
    browser.open("about:blank")
    assert server.token not in server.stop()
    with Server(server.folder) as again:
        assert again.token != server.token
        browser.open(server.url.replace(server.url.split("/?")[0], again.url.split("/?")[0]))
        assert browser.evaluate("document.scripts.length") == 0  # the token is of the first
        assert any("403" in problem for problem in browser.problems)
        browser.problems.clear()
        opened(browser, again, "mine")
        assert wait_for_status(browser, "running")
        wait_for(browser, f"{STEPS} > {steps}")
        os.kill(trainer, signal.SIGKILL)
        assert wait_for_status(browser, "killed")
        tell(browser, "until", str(RunFolder(run).read_metrics()[-1]["step"] + 1))
        click(browser, "resume")
        assert wait_for_status(browser, "finished", "failed") == "finished"
        browser.open("about:blank")
        again.stop()


def test_what_is_wrong_is_said_whole(browser, server):
    (server.folder / "mine.py").write_text(BROKEN)
    opened(browser, server)
    tell(browser, "model", "./nowhere")
    wait_for(
        browser, "document.getElementById('plan').textContent.startsWith('It would be refused')"
    )
    assert "no such file or folder: check the path" in text(browser, "plan")
    tell(browser, "model", "embedded")
    tell(browser, "reward", "mine.py:reward")
    begin(browser, "mine", 3)
    assert wait_for_status(browser, "failed")
    wait_for(browser, "document.getElementById('error').textContent")
    said = text(browser, "error")
    assert "as <b>a reward</b> may " + "x" * 100 in said and "mine.py" in said


def test_markup_of_a_run_stays_text(browser, server):
    name = "<img src=x onerror='window.hacked=1'>"
    run = make_run(server.folder / "runs" / name, 2, write=lambda draw, length: HOSTILE)
    run.close()
    (run.path / CONFIG).write_text(f'learner = "grpo"\nmodel = {name!r}\n# {HOSTILE[:60]}\n')
    run.write_summary({"status": "failed", "error": HOSTILE, "adapter": HOSTILE})
    (run.path / "error.txt").write_text(HOSTILE[:100])
    write_report(run)
    script = (
        "<script>parent.hacked = top.hacked = 1; fetch('/runs').then(() => top.hacked = 1)</script>"
    )
    report = run.path / "report.html"
    report.write_text(script + report.read_text(errors="replace"))
    opened(browser, server)
    browser.wait_for("document.querySelector('#runs a') !== null")
    browser.evaluate("document.querySelector('#runs a').click()")
    wait_for_status(browser, "failed")
    wait_for(browser, REPORT)
    assert text(browser, "name") == name and "</script><script>" in text(browser, "error")
    assert "onerror" in text(browser, "config")
    browser.wait_for("document.getElementById('traceback').textContent")
    browser.evaluate("new Promise((done) => setTimeout(done, 500))")
    assert browser.evaluate("typeof window.hacked") == "undefined"
    assert browser.evaluate("document.querySelectorAll('img, b:not(.yes):not(.no)').length") == 0
    assert browser.evaluate("document.scripts.length") == 1
    with pytest.raises(RuntimeError, match="TrustedHTML"):
        browser.evaluate("document.body.innerHTML = '<b>x</b>'")
    browser.problems.clear()  # of what was refused


LOOKS = [
    {"width": width, "height": 844, "dark": dark, "phone": width < 400}
    for width in (390, 1280)
    for dark in (False, True)
]


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: f"{look['width']}-{look['dark']}")
def test_everybody_can_use_it(browser, server, look, tmp_path):
    """Nothing is wider than the window, and axe-core finds nothing serious."""
    run = make_run(server.folder / "runs" / "mine", 3)
    run.close()
    (run.path / "adapters" / "v000003").mkdir(parents=True)
    run.write_summary({"status": "failed", "error": "reward " + "x" * 300})
    (run.path / "error.txt").write_text("Traceback\nValueError: " + "y" * 300)
    write_report(run)
    browser.look(**look)
    pictures = Path(os.environ.get("UNSLOTHRL_SCREENSHOTS", tmp_path))
    for shown in ("", "mine"):
        opened(browser, server, shown)
        if shown:
            wait_for_status(browser, "failed")
            wait_for(browser, REPORT)
        else:
            click(browser, "add")
        browser.evaluate("document.querySelectorAll('details').forEach((e) => (e.open = true))")
        assert browser.evaluate(WIDER) <= 0
        browser.screenshot(pictures / f"ui{look['width']}{'-dark' * look['dark']}{shown}.png")
        assert violations(browser) == []

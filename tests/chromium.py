"""Drives a headless Chromium over a pipe, by its DevTools protocol, without further packages.

    with Chromium() as browser:
        browser.open(path.as_uri())
        browser.evaluate("document.title")

`problems` has what its console would show as an error: exceptions, and what the page's policy or a
file that is missing has refused.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
INSTALL = "apt-get install -y --no-install-recommends chromium"
TIMEOUT_S = 30.0
# In the child: the pipe's ends are where Chromium looks for them.
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execvp(sys.argv[3], sys.argv[3:])"
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # it would refuse to run as root; what it opens is ours
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
)

WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
AXE = Path(os.environ.get("UNSLOTHRL_AXE", Path(sys.prefix) / "peers" / "axe"))
SERIOUS = (
    "axe.run().then((found) => found.violations.filter(({impact}) => /serious|critical/"
    ".test(impact)).map(({id, nodes}) => `${id}: ${nodes[0].html}`))"
)


def each(browser: "Chromium", selector: str, figure: str) -> Any:
    """A figure of every element `e` that is selected."""
    return browser.evaluate(
        f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => {figure})"
    )


def texts(browser: "Chromium", selector: str) -> list[str]:
    return each(browser, selector, "e.textContent")


def violations(browser: "Chromium") -> list[str]:
    """What axe-core finds of the page that is serious: `make report-test` has it."""
    browser.call("Page.setBypassCSP", enabled=True)
    browser.evaluate((AXE / "axe_playwright_python" / "axe.min.js").read_text() + "; 0")
    return browser.evaluate(SERIOUS)


def find() -> str | None:
    """The program, None if it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """A browser with one page."""

    def __init__(self):
        program = find()
        if program is None:
            raise FileNotFoundError(f"Chromium is not installed: {INSTALL}")
        self.folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]
        command = [program, *FLAGS, f"--user-data-dir={self.folder.name}", "about:blank"]
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        command = [sys.executable, "-c", START, *map(str, ends), *command]
        self.process = subprocess.Popen(command, pass_fds=ends, **silent)
        for fd in (theirs_in, theirs_out, *ends):
            os.close(fd)
        self.reads, self.writes, self.buffer = ours_in, ours_out, b""
        self.asked, self.session = 0, ""
        self.problems: list[str] = []
        self.loads = 0  # pages that are loaded
        targets = self.call("Target.getTargets")["targetInfos"]
        (target,) = [each for each in targets if each["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.reads)
        os.close(self.writes)
        self.folder.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A method of the protocol. RuntimeError where it is refused."""
        self.asked += 1
        message: dict[str, Any] = {"id": self.asked, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.writes, data) :]
        while (answer := self._message()).get("id") != self.asked:
            self._event(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _message(self) -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT_S
        while b"\0" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.reads], [], [], left)[0]:
                raise TimeoutError(f"Chromium said nothing for {TIMEOUT_S:g} s")
            data = os.read(self.reads, 1 << 20)
            if not data:
                raise RuntimeError("Chromium has ended")
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def _event(self, message: dict[str, Any]) -> None:
        method, found = message.get("method", ""), message.get("params", {})
        if method == "Page.loadEventFired":
            self.loads += 1
        elif method == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            said = details.get("exception", {}).get("description") or details["text"]
            self.problems.append(said)
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "assert"):
            self.problems.append(str([each.get("value") for each in found["args"]]))
        elif method == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.problems.append(found["entry"]["text"])

    def open(self, url: str) -> None:
        """Loads a page, and returns when it is loaded."""
        before = self.loads
        self.call("Page.navigate", url=url)
        while self.loads == before:
            self._event(self._message())

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited where it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The value of an expression as soon as it is true. TimeoutError."""
        until = time.monotonic() + TIMEOUT_S
        while not (value := self.evaluate(expression)):
            if time.monotonic() > until:
                raise TimeoutError(f"never true: {expression}; problems: {self.problems}")
            self.evaluate("new Promise(requestAnimationFrame)")
        return value

    def move_to(self, x: float, y: float) -> None:
        """The pointer, in the window's pixels."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def look(self, width: int, height: int, dark: bool = False, phone: bool = False) -> None:
        """The size of the window, and what its user prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1 + phone}
        self.call("Emulation.setDeviceMetricsOverride", **size, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """What the window shows, as a PNG."""
        answer = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

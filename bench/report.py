"""How large is a run's report, and how long does a browser take to open it?

    python bench/report.py                  # needs Chromium, see tools/chromium.py

Makes run folders of 30 steps and of 2,000 steps (50,000 completions), writes their reports, and
opens each five times in a headless Chromium: until its charts and the last step's rollouts are
there. Then another step is chosen. Writes bench/results/report-cpu.json.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]

import chromium  # noqa: E402
from facts import facts, result_file  # noqa: E402
from report_runs import make_run  # noqa: E402

from unslothrl.tracking.report.page import write_report  # noqa: E402
from unslothrl.tracking.report.rollout_data import browser_data  # noqa: E402
from unslothrl.training.tracing import MOST_STEPS  # noqa: E402

RUNS = {30: (4, 8), 2000: (5, 5)}  # steps -> prompts, candidates
LENGTH = 250  # words of a completion, about
TIMES = 5
READY = """new Promise((resolve) => {
  const look = () => document.querySelector("#prompts .prompt")
    ? resolve(performance.now()) : requestAnimationFrame(look);
  look();
})"""
SLIDE = """new Promise((resolve) => {
  const began = performance.now(), slider = document.getElementById("slider");
  const before = document.querySelector(".prompt h3").textContent;
  slider.value = Math.floor(slider.max / 2);
  slider.dispatchEvent(new Event("input"));
  const look = () => document.querySelector(".prompt h3").textContent !== before
    ? resolve(performance.now() - began) : requestAnimationFrame(look);
  look();
})"""
SEARCH = """new Promise((resolve) => {
  const began = performance.now(), box = document.getElementById("everywhere");
  document.getElementById("search").value = "nowhere to be found";
  box.checked = true;
  box.dispatchEvent(new Event("change"));
  const look = () => document.getElementById("said").textContent.includes("in all steps")
    ? resolve(performance.now() - began) : requestAnimationFrame(look);
  look();
})"""


def measure(browser: chromium.Chromium, path: Path, steps: int) -> dict[str, object]:
    """Of one run."""
    prompts, candidates = RUNS[steps]
    folder = make_run(
        path,
        steps,
        prompts,
        candidates,
        length=LENGTH,
        traced_every=-(-steps // MOST_STEPS),
        eval_every=20,
    )
    started = time.perf_counter()
    report = write_report(folder)
    first_s = time.perf_counter() - started
    started = time.perf_counter()
    write_report(folder)
    again_s = time.perf_counter() - started
    opened, slid = [], []
    for _ in range(TIMES):
        browser.open("about:blank")
        browser.open(report.as_uri())
        opened.append(browser.evaluate(READY))
        slid.append(browser.evaluate(SLIDE))
    searched = browser.evaluate(SEARCH)
    shown = browser_data(folder)
    rollouts = sum(each.stat().st_size for each in (folder.path / "rollouts").iterdir())
    return {
        "completions": steps * prompts * candidates,
        "MB of report.html": round(report.stat().st_size / 1e6, 2),
        "seconds to open, median": round(statistics.median(opened) / 1000, 2),
        "seconds to open, longest": round(max(opened) / 1000, 2),
        "seconds to show another step": round(statistics.median(slid) / 1000, 3),
        "seconds to search all steps": round(searched / 1000, 2),
        "seconds to write": round(first_s, 2),
        "seconds to write again": round(again_s, 2),
        "steps in the page": len(shown["steps"]),
        "MB of the rollouts": round(rollouts / 1e6, 1),
        "problems": browser.problems,
    }


def main() -> None:
    result: dict[str, object] = facts(("numpy",))
    with tempfile.TemporaryDirectory() as folder, chromium.Chromium() as browser:
        result["browser"] = browser.call("Browser.getVersion")["product"]
        browser.look(1280, 900)
        result["load of the machine before"] = round(os.getloadavg()[0], 1)
        for steps in RUNS:
            result[f"{steps} steps"] = measure(browser, Path(folder) / str(steps), steps)
            print(steps, result[f"{steps} steps"], flush=True)
    result_file("report").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

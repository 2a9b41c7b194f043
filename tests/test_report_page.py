"""The report's script in a headless Chromium: `make report-test`.

With UNSLOTHRL_SCREENSHOTS=docs/images UNSLOTHRL_RUN=runs/<run> pictures of that run's report are
written there.
"""

import json
import os
from pathlib import Path

import chromium
import pytest
from chromium import WIDER, each, texts, violations
from report_runs import HOSTILE, make_run

from unslothrl.tracking import origin
from unslothrl.tracking.report.page import write_report
from unslothrl.tracking.rows import read_jsonl
from unslothrl.tracking.run_folder import RunFolder

pytestmark = pytest.mark.slow

MOST_PICTURE = 300_000  # bytes


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as found:
        found.look(1280, 900)
        yield found


@pytest.fixture
def page(browser):
    """-> a function that opens a page; at the end there must have been no problem."""
    browser.problems.clear()
    browser.look(1280, 900)

    def opened(folder, hash: str = ""):
        browser.open("about:blank")
        browser.open(report(folder).as_uri() + hash)
        browser.wait_for("document.querySelectorAll('#prompts .prompt').length > 0")
        return browser

    yield opened
    assert browser.problems == []


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("runs") / "example", 12, length=40)
    folder.write_summary({"status": "finished"})  # or the page loads itself again
    origin.record_resume(folder.path, 7, (), {})
    write_report(folder)
    return folder


def report(folder) -> Path:
    return folder.path / "report.html"


def first_task(browser) -> str:
    return tasks(browser)[0]


def tasks(browser) -> list[str]:
    return [text.split(":")[0] for text in texts(browser, ".prompt > .meta")]


def set_value(browser, name: str, value, event: str = "change") -> None:
    browser.evaluate(
        f"(() => {{ const e = document.getElementById('{name}'); "
        f"if (e.type === 'checkbox') e.checked = {json.dumps(value)}; "
        f"else e.value = {json.dumps(value)}; e.dispatchEvent(new Event('{event}')) }})()"
    )


def box(browser, selector: str) -> dict[str, float]:
    """Its place in the window, after it was scrolled there."""
    return browser.evaluate(
        f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
        "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); "
        "return {x: b.x, y: b.y, width: b.width, height: b.height} })()"
    )


def wait_for_step(browser, name: str) -> None:
    """Until the rollouts of `name`, such as step=12, are shown."""
    browser.wait_for(f"document.getElementById('prompts').dataset.hash === '#{name}'")


def rows(folder, step: int) -> list[dict]:
    return read_jsonl(folder.step_file("rollouts", step))


def test_charts_are_drawn_and_a_pointer_reads_their_values(page, run):
    browser = page(run)
    assert all(each(browser, "figure path.line", "e.getBoundingClientRect().width > 0"))
    assert len(texts(browser, "figure")) >= 14
    at = box(browser, "#reward-mean .plot")
    last = texts(browser, "#reward-mean .legend")[0]
    browser.move_to(at["x"] + 1, at["y"] + at["height"] / 2)
    assert texts(browser, "#reward-mean .at")[0].startswith("step 1 rollouts of step 1")
    shown = texts(browser, "#reward-mean .legend b")[0]
    assert float(shown) == pytest.approx(run.read_metrics()[1]["reward/mean"], abs=0.001)
    browser.move_to(at["x"] + at["width"] - 1, at["y"] + 5)
    assert texts(browser, "#reward-mean .at")[0].startswith("step 12")
    browser.move_to(1, 1)
    assert texts(browser, "#reward-mean .legend")[0] == last
    at = box(browser, "#heatmap .plot")
    browser.move_to(at["x"] + 1, at["y"] + 5)
    assert texts(browser, "#heatmap .at")[0].startswith("held-")
    seen = []
    for column in range(20):  # near its end that is nearest to the middle of the chart
        share = (column + (0.95 if column < 10 else 0.05)) / 20
        browser.move_to(at["x"] + share * at["width"], at["y"] + 5)
        seen += texts(browser, "#heatmap .at")
    values = "JSON.parse(document.querySelector('#heatmap').dataset.values)"
    assert seen == browser.evaluate(f"{values}.names")


def test_a_point_of_a_curve_leads_to_its_rollouts(page, run):
    browser = page(run)
    for _ in range(2):  # also when it is chosen again, after another step
        at = box(browser, "#reward-mean .plot")
        browser.move_to(at["x"] + at["width"] * 4 / 11, at["y"] + 20)
        browser.click(at["x"] + at["width"] * 4 / 11, at["y"] + 20)
        wait_for_step(browser, "step=5")
        assert first_task(browser) == rows(run, 5)[0]["task"]
        browser.evaluate("document.getElementById('next').click()")
        wait_for_step(browser, "step=6")


def test_the_keyboard_reads_charts_too(page, run):
    browser = page(run)
    browser.evaluate("document.querySelector('#reward-mean .plot').focus()")
    for key in ("ArrowLeft", "ArrowLeft", "Enter"):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    wait_for_step(browser, "step=11")


def test_the_slider_shows_each_step_with_candidates_side_by_side(page, run):
    browser = page(run)
    assert browser.evaluate("document.getElementById('where').textContent") == "step 12, 12 of 16"
    for index in (0, 5, 11):
        set_value(browser, "slider", index, "input")
        known = rows(run, index + 1)
        wait_for_step(browser, f"step={index + 1}")
        assert texts(browser, ".candidate pre") == [row["completion"] for row in known]
    x, y = (
        each(browser, ".prompt:first-child .candidates > *", f"e.getBoundingClientRect().{axis}")
        for axis in "xy"
    )
    assert len(set(y)) == 1 and len(set(x)) == 4
    meta = texts(browser, ".candidate .meta")[0]
    assert "reward" in meta and "accuracy" in meta and "advantage" in meta and "selected" in meta
    assert "not selected" in texts(browser, ".candidate .meta")[3]
    assert texts(browser, ".prompt > .meta")[0].endswith("reference 7")
    assert texts(browser, ".candidate .meta")[0][:3] in ("1 ✓", "1 ✗")


def test_search_filters_and_orders(page, run):
    browser = page(run, "#step=2")
    known = rows(run, 2)
    groups = [known[i : i + 4] for i in range(0, 16, 4)]
    for name, keeps in (
        ("wrong", lambda g: not any(row["score"] for row in g)),
        ("right", lambda g: all(row["score"] for row in g)),
        ("mixed", lambda g: 0 < sum(row["score"] for row in g) < 4),
        ("truncated", lambda g: any(row["finish_reason"] == "length" for row in g)),
        ("all", lambda g: True),
    ):
        set_value(browser, "filter", name)
        assert tasks(browser) == [g[0]["task"] for g in groups if keeps(g)], name
    set_value(browser, "order", "longest")
    longest = max(groups, key=lambda g: max(len(row["completion"]) for row in g))
    assert first_task(browser) == longest[0]["task"]
    gained = {row["task"]: 0.0 for row in known}
    for sign, drawn in ((-1, rows(run, 1)), (1, known)):  # of the same prompts
        for row in drawn:
            gained[row["task"]] += sign * sum(row["rewards"].values()) / 4
    set_value(browser, "order", "improved")
    assert first_task(browser) == max(gained, key=gained.get)
    assert f"{max(gained.values()):+.3f}" in texts(browser, ".prompt > .meta")[0]
    set_value(browser, "order", "drawn")
    part = groups[2][1]["completion"][5:40].strip()
    set_value(browser, "search", part.upper(), "input")
    browser.wait_for("document.querySelectorAll('.prompt').length === 1")
    assert first_task(browser) == groups[2][0]["task"]


def test_tokens_are_coloured_on_demand(page, run):
    browser = page(run, "#step=4")
    assert texts(browser, ".t") == []
    set_value(browser, "colour", "gaps")
    first = "".join(texts(browser, ".candidate:first-child pre:first-of-type")[0])
    assert first == rows(run, 4)[0]["completion"]
    assert len(set(each(browser, ".t", "getComputedStyle(e).backgroundColor"))) > 3
    assert texts(browser, "#key span") == [f"from {x}" for x in (0.02, 0.05, 0.1, 0.3, 1)]
    title = browser.evaluate("document.querySelector('.t').title")
    assert title.startswith("log-probability -") and ", learner " in title
    browser.evaluate("document.querySelector('.candidate pre').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    piece = browser.evaluate("document.querySelector('.t').textContent")
    assert texts(browser, "#token") == [f"“{piece}”: {title}"]
    assert len(texts(browser, ".told")) == 1
    set_value(browser, "colour", "advantages")
    whole = each(browser, ".candidate pre", "e.style.backgroundImage")
    assert [colour.startswith("linear-gradient") for colour in whole] == [
        row["advantage"] != 0 for row in rows(run, 4)
    ]


@pytest.mark.parametrize("has_turns", [False, True])
def test_hostile_completions_stay_text(page, tmp_path, has_turns):
    write = lambda draw, length: HOSTILE  # noqa: E731
    folder = make_run(tmp_path / "hostile", 2, write=write, has_turns=has_turns)
    folder.write_summary({"status": "finished", "command": HOSTILE, "adapter": HOSTILE})
    write_report(folder)
    browser = page(folder)
    seen = texts(browser, ".candidate pre.said" if has_turns else ".candidate pre")[0]
    assert "</script><script>window.hacked=1</script><img src=x" in seen
    assert "␀␛[2J⟨202e⟩reversed⟨202c⟩ ⟨2028⟩" in seen
    for colour in ("gaps", "advantages", "logprobs"):
        set_value(browser, "colour", colour)
    set_value(browser, "search", "<script>", "input")
    assert browser.evaluate("typeof window.hacked") == "undefined"
    assert browser.evaluate("document.querySelectorAll('img, iframe').length") == 0
    assert browser.evaluate("document.scripts.length") == 2


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("runs") / "episodes", 6, length=12, has_turns=True)
    folder.write_summary({"status": "finished"})
    write_report(folder)
    return folder


def test_episodes_are_browsed_turn_by_turn(page, episodes):
    browser = page(episodes, "#step=4")
    wait_for_step(browser, "step=4")
    turns = [turn for row in rows(episodes, 4) for turn in row["turns"]]
    written = texts(browser, ".candidate pre:not(.said)")
    assert written == [turn["reply"] for turn in turns]
    said = [turn["observation"] for turn in turns if turn["observation"]]
    assert texts(browser, ".candidate pre.said") == said
    calls = texts(browser, ".candidate .call code")
    assert calls[0] == "multiply " + turns[0]["tool_calls"][0]["arguments"]
    assert len(calls) == sum(len(turn["tool_calls"]) for turn in turns)
    step = next(step for step in range(1, 7) if any("lost" in row for row in rows(episodes, step)))
    browser.evaluate(f"location.hash = 'step={step}'")
    wait_for_step(browser, f"step={step}")
    reasons = [f"lost: {row['lost']}" for row in rows(episodes, step) if "lost" in row]
    assert texts(browser, ".candidate .lost") == reasons
    sought = next(turn for row in rows(episodes, step) for turn in row["turns"]
                  if turn["observation"])["observation"]  # fmt: skip
    set_value(browser, "search", sought, "input")
    browser.wait_for("document.querySelectorAll('.prompt').length === 1")
    assert sought in texts(browser, ".candidate pre.said")


def test_no_other_script_runs(browser, run, tmp_path):
    """What would have got into the page all the same is refused by its policy."""
    path = tmp_path / "report.html"
    planted = "<script>window.hacked=1</script><script src='evil.js'></script><section"
    path.write_text(report(run).read_text().replace("<section", planted, 1))
    (tmp_path / "evil.js").write_text("window.hacked = 2")
    browser.open(path.as_uri())
    assert browser.evaluate("typeof window.hacked") == "undefined"
    with pytest.raises(RuntimeError, match="TrustedHTML"):
        browser.evaluate("document.body.innerHTML = '<b>x</b>'")
    assert sum("Content Security Policy" in problem for problem in browser.problems) >= 2
    browser.problems.clear()


LOOKS = {
    "report": {"width": 1280, "height": 1000},
    "report-dark": {"width": 1280, "height": 1000, "dark": True},
    "report-phone": {"width": 390, "height": 844, "phone": True},
}


@pytest.mark.parametrize("name", LOOKS)
def test_pictures(page, run, episodes, tmp_path, name):
    """Nothing is wider than the window, and the pictures are as small as the documents want."""
    folder = Path(os.environ.get("UNSLOTHRL_SCREENSHOTS", tmp_path))
    run = RunFolder(os.environ.get("UNSLOTHRL_RUN", run.path))
    for kind, shown in (("", run), ("-rollouts", run), ("-episodes", episodes)):
        browser = page(shown, "" if not kind else "#step=4")
        browser.look(**LOOKS[name])
        assert browser.evaluate(WIDER) <= 0
        if not kind:  # on a phone as well
            ends = "e.getBoundingClientRect().right"
            seen = each(browser, "#before-after tr:last-child td", ends)
            assert len(seen) == 4 and max(seen) <= LOOKS[name]["width"]
        if kind == "-rollouts":
            set_value(browser, "colour", "gaps")
        elif not kind:
            browser.evaluate("scrollTo(0, 0)")
            browser.evaluate("new Promise(requestAnimationFrame)")
        is_shown = not kind or (kind, name) == ("-rollouts", "report")  # in docs/report.md
        picture = (folder if is_shown else tmp_path) / f"{name}{kind}.png"
        browser.screenshot(picture)
        assert 10_000 < picture.stat().st_size < MOST_PICTURE
        assert violations(browser) == []


def test_the_page_of_a_running_run_loads_itself_again_where_it_is_read(page, tmp_path):
    folder = make_run(tmp_path / "running", 6)
    write_report(folder)
    browser = page(folder)
    set_value(browser, "slider", 3, "input")
    set_value(browser, "order", "longest")
    browser.evaluate("document.querySelector('#rollouts').scrollIntoView()")
    top, loads = browser.evaluate("scrollY"), browser.loads
    while browser.loads == loads:
        browser._event(browser._message())
    wait_for_step(browser, "step=4")
    assert browser.evaluate("scrollY") == top > 0
    assert browser.evaluate("document.getElementById('order').value") == "longest"


def test_a_page_of_a_thousand_problems_is_painted_within_two_seconds(page, tmp_path):
    folder = make_run(tmp_path / "long", 2, prompts=60, candidates=8, problems=1000)
    row = folder.read_metrics()[1]
    for step in range(3, 1001):
        for kind in ("rollouts", "tokens"):
            os.link(folder.step_file(kind, step % 2 + 1), folder.step_file(kind, step))
        folder.log({**row, "step": step})
    write_report(folder)
    assert report(folder).stat().st_size < 5_000_000
    paints = "performance.getEntriesByType('paint').map((e) => e.startTime)"
    assert max(page(folder).evaluate(paints)) < 2000

"""The report: what it says of a run, the rollouts in it, comparisons. Its script is tested in a
browser, by test_report_page.py."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fakes import completion, group
from hypothesis import given
from hypothesis import strategies as st
from report_runs import HOSTILE, make_run

from unslothrl.commands import cli
from unslothrl.tracking import origin
from unslothrl.tracking.metrics import LARGEST
from unslothrl.tracking.report import charts, problems, rollout_data, signs, verdict
from unslothrl.tracking.report.history import RunHistory, read_all
from unslothrl.tracking.report.page import write_report
from unslothrl.tracking.report.rollout_data import browser_data
from unslothrl.tracking.rows import evaluation_rows, json_line, read_jsonl, rollout_rows
from unslothrl.tracking.run_folder import RunFolder, delete_up_to, noting_errors, write_tokens


class Page(HTMLParser):
    """Tags, attributes and text of a page, read as a browser would."""

    def __init__(self, source: str):
        super().__init__()
        self.source, self.inside = source, ""
        self.tags, self.attributes, self.text, self.scripts = [], [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.inside = tag
        self.tags.append(tag)
        self.attributes += attrs
        self.scripts += [""] * (tag == "script")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())

    @property
    def data(self) -> dict:
        return json.loads(self.scripts[0])


def page_of(folder: RunFolder) -> Page:
    return Page(write_report(folder).read_text())


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "first", 'learner = "grpo"\nbatch_size = 2\n')


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("runs") / "example")


@pytest.fixture(scope="module")
def shown(run) -> Page:
    return page_of(run)


# The page


def test_the_page_says_what_the_run_is(shown):
    for part in (
        "running", "modelembedded", "learnergrpo", "reward['accuracy','format']", "torch2.13.0",
        "started2026-11-2208:15", "Startedbyunslothrl--learnergrpo", "shuffle_rewardsfalse",
    ):  # fmt: skip
        assert part in shown.words.replace(" ", ""), part


def test_every_chart_of_the_issue_is_there(shown):
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", shown.source)
    for part in (
        "Reward", "Held-out", "Each held-out", "Completion length", "Truncated", "Entropy",
        "Sampler gap",
        "Groups without signal", "Learning rate", "Peak memory", "Seconds of a step",
        "Loss", "KL", "Gradient norm", "tokens per second",
    ):  # fmt: skip
        assert any(part in caption for caption in captions), part
    assert shown.tags.count("svg") == len(captions)
    assert not any("Failed" in caption for caption in captions)  # there was none
    assert not any("Staleness" in caption for caption in captions)  # it was 0


def test_before_and_after_have_intervals_and_a_paired_difference(run, shown):
    first, last = (run.read_metrics()[i]["eval/held_out/pass@1"] for i in (0, -1))
    row = re.search(r"<tr><th>pass@1 .*?</tr>", shown.source)[0]
    numbers = map(float, re.findall(r"-?\d*\.\d+", re.sub("<.*?>", " ", row)))
    before, low, high, after, bottom, top, change, least, most, p, _ = numbers
    assert (before, after, change) == pytest.approx((first, last, last - first), abs=0.001)
    assert low < before < high and bottom < after < top and least < change < most and p < 0.05


def test_the_policy_allows_this_script_alone(shown):
    (policy,) = [v for k, v in shown.attributes if k == "content" and "default-src" in v]
    digest = base64.b64encode(hashlib.sha256(shown.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy and "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2]
    assert "unsafe-eval" not in policy and "require-trusted-types-for 'script'" in policy
    assert len(shown.scripts) == 2 and "innerHTML" not in shown.scripts[1]


def test_the_page_needs_no_network(shown):
    links = [v for k, v in shown.attributes if k in ("src", "href")]
    assert not any(":" in link or link.startswith("/") for link in links)
    style = re.search("<style>(.*?)</style>", shown.source, re.DOTALL)[1]
    assert "url(" not in style and "@import" not in style
    assert "https://" not in shown.source


def test_every_chart_says_what_it_is_and_what_is_healthy():
    """By docs/metrics.md, of which a renamed row would leave a chart without a word."""
    of_rl, of_stages = charts.meanings(True), charts.meanings(False)
    for metrics in (m for figures in charts.FIGURES.values() for m in figures.values()):
        known = of_stages if metrics.startswith("train/") else of_rl
        assert {*metrics.split()} & known.keys(), metrics


def test_what_a_model_wrote_stays_text(tmp_path):
    folder = make_run(tmp_path / "hostile", 2, write=lambda draw, length: HOSTILE)
    folder.write_summary({"status": HOSTILE, "command": HOSTILE, "adapter": HOSTILE})
    page = page_of(folder)
    assert page.tags.count("script") == 2
    assert not {"img", "iframe", "link"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "<b>bold</b>" not in page.source and "</script><script>window" in page.words
    body = page.source.partition("<body>")[2]
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2028\ufeff]", body)
    assert "␀␛[2J⟨202e⟩reversed" in body
    every = [c for s in page.data["steps"] for p in s["prompts"] for c in p["candidates"]]
    assert every and all(c["completion"] == [rollout_data.visible(HOSTILE)] for c in every)
    data = re.search('id="data">(.*?)</script>', page.source)[1]
    assert data.isascii() and not re.search("[<>&]", data)


def test_episodes_have_charts_and_turns(tmp_path, shown):
    folder = make_run(tmp_path / "turns", 6, has_turns=True)
    page = page_of(folder)
    captions = set(re.findall(r"<figcaption>(.*?)</figcaption>", page.source))
    assert captions >= {"Turns of an episode", "Tool calls of an episode", "Lost episodes"}
    assert "Turns of an episode" not in shown.source
    every = [c for s in page.data["steps"] for p in s["prompts"] for c in p["candidates"]]
    rows = [row for i in range(1, 7) for row in read_jsonl(folder.step_file("rollouts", i))]
    lost = [row["lost"] for row in rows if "lost" in row]
    assert lost and [each["lost"] for each in every if "lost" in each] == [[text] for text in lost]


def test_the_turns_of_an_episode():
    """Cut to a length that all its texts share; of many turns the first ones and the last."""
    calls = [{"name": "n" * 300, "arguments": "a" * 300, "error": ""}] * 6
    turn = {"reply": "r" * 300, "observation": "o" * 300, "reward": 0.5, "calls": 6,
            "failed_calls": 2, "tool_calls": calls}  # fmt: skip
    last = {"reply": "end", "observation": "", "reward": 1.0, "calls": 0, "failed_calls": 0}
    row = next(rollout_rows([group("a", [1.0])])) | {"turns": [turn] * 30 + [last]}
    found = rollout_data.candidate(row, 24 * 100, 0)
    assert (len(found["turns"]), found["turns_left_out"]) == (12, 31 - 12)
    first = found["turns"][0]
    assert first["reply"] == ["r" * 75, 200, "r" * 25] and first["observation"][1] == 200
    assert (len(first["tool_calls"]), first["calls"], first["failed_calls"]) == (4, 6, 2)
    call = first["tool_calls"][0]
    assert (call["name"][1], call["arguments"][1], call["error"]) == (200, 200, [""])
    assert found["turns"][-1]["reply"] == ["end"]


@pytest.mark.parametrize("number_of_steps", [0, 1])
def test_the_report_of_a_run_of_no_or_one_step(folder, number_of_steps):
    if number_of_steps:
        folder.log({"step": 1, "reward/mean": 0.5, "train/loss": math.nan, "timing/step_s": 2.0})
        folder.write_rows("rollouts", 1, rollout_rows([group("a", [1.0])]))
    folder.write_summary({"status": "finished"})
    page = page_of(folder)
    assert "finished" in page.words and ("Too early to say" in page.words) == number_of_steps
    assert (("id", "rollouts") in page.attributes) == number_of_steps


def test_resumes_are_recorded_and_marked(run, tmp_path):
    folder = make_run(tmp_path / "resumed", 6)
    assert 'class="mark"' not in page_of(folder).source
    origin.record_resume(folder.path, 3, (), {})
    origin.record_resume(folder.path, 5, (), {})
    origin.record_resume(folder.path, 4, ["lr 0.1 -> 0.2"], {})  # from before the second
    assert [each.step for each in origin.read(folder.path).resumes] == [3, 4]
    page = page_of(folder)
    assert "after step 3," in page.words and "lr 0.1 -> 0.2" in page.words
    assert page.source.count('class="mark"') == 2 * (page.tags.count("svg") - 1)  # no heatmap's


@pytest.mark.parametrize("text", ["", '{"resumes": [[1]]}', '{"x": ' + "[" * 9999])
def test_a_damaged_origin_is_as_none(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    assert origin.read(tmp_path) == origin.Origin()


# Signs


UP = [0.1 * i for i in range(10)]
FOUND = {
    "Almost no completion was graded as right": ({"rollout_score": [0.0] * 5}, "in 5 steps"),
    "Nearly everything was right from the start": (
        {"rollout_score": [0.98] * 5}, "never below 0.980"),
    "Most groups had nothing to learn from": (
        {"reward_zero_signal_groups": [1, 2, 7, 8, 9]}, "In 80% of"),
    "Most problems are solved by now": (
        {"reward_zero_signal_groups": [8] * 4, "rollout_score": [0.9] * 4}, "at a score of 0.900"),
    "The reward collapsed": (
        {"reward_mean": [*UP, 0.9, 0.2, 0.1, 0.1]}, "from 0.867 at about step 11 to 0.133"),
    "Candidates have become alike": (
        {"train_entropy": [1, 1, 1, 0.05, 0.05, 0.05]}, "from 1.000 to 0.0500"),
    "Completions became longer": (
        {"rollout_mean_length": [100.0] * 3 + [200.0] * 3}, "from 100 to 200"),
    "Completions became shorter": (
        {"rollout_mean_length": [100.0] * 3 + [40.0] * 3}, "from 100 to 40.0"),
    "Many completions were cut off": ({"rollout_truncated": [0.0, 0.3, 0.3, 0.3]}, "30% of"),
    "The sampler gap grew": (
        {"train_sampler_gap": [0.01] * 3 + [0.09] * 3}, "from 0.0100 to 0.0900"),
    "Sampler and learner disagree": ({"train_sampler_gap": [0.2] * 3}, "0.200 nats"),
    "Updates were not finite": (
        {"train_skipped_updates": [0, 1, 2]}, "skipped: 3, the first in step 2"),
    "Rewards failed": (
        {"reward_failed": [0, 3, 0, 2]}, "5 could not be computed and counted as 0"),
    "A reward was never earned": (
        {"reward_mean": [1] * 3, "reward_a": [1] * 3, "reward_b": [0] * 3}, "b was 0"),
    "Held-out problems are solved less often": (
        {"reward_mean": UP, "eval_s/pass@1": [0.5] * 9 + [0.3]}, "from 0.500 to 0.300"),
    "Few tokens count": ({"train_ess": [0.99, 0.7, 0.5, 0.6]}, "only 60%"),
    "Too early to say": ({"timing_step_s": [0.5]}, "so far: 1;"),
}  # fmt: skip


def signs_of(curves: dict, **options) -> list[signs.Sign]:
    """All curves have one length; `reward_mean` is that of reward/mean."""
    names = [name.replace("_", "/", 1) for name in curves]
    steps = enumerate(zip(*curves.values(), strict=True), 1)
    rows = [{"step": step, **dict(zip(names, values, strict=True))} for step, values in steps]
    return signs.found(RunHistory(rows, options))


@pytest.mark.parametrize("title", FOUND)
def test_a_sign_is_seen(title):
    curves, seen = FOUND[title]
    found = {sign.rule.title: sign for sign in signs_of(curves, batch_size=10)}
    assert seen in found[title].seen and found[title].rule.advice


def test_every_rule_of_rl_is_tested_and_a_healthy_run_has_no_sign(run):
    assert set(FOUND) == {rule.title for rule in signs.RULES if "train" in rule.kinds}
    assert signs.found(RunHistory.read(run)) == []


def test_a_score_on_a_scale_of_its_own_is_no_share():
    assert "Nearly" not in str(signs_of({"rollout_score": [1.0, 1.2, 1.6, 1.9]}))


def test_what_follows_from_another_sign_is_left_out():
    """With one right completion of a hundred, too."""
    curves = {"rollout_score": [0, 0, 0, 0, 0.02], "reward_mean": [0.3] * 5, "reward_a": [0] * 5}
    curves |= {"reward_b": [0.3] * 5, "reward_zero_signal_groups": [9] * 5}
    found = [sign.rule.title for sign in signs_of(curves, batch_size=10)]
    assert found == [signs.NEVER]


def test_a_short_run_without_evaluation_says_what_the_reward_did():
    rows = [{"step": i, "reward/mean": 0.5 + i / 4, "timing/step_s": 1.0} for i in (1, 2)]
    said = "Not evaluated (--eval_every): the reward went from 0.750 to 1.000 in 2 steps, 2 s"
    assert verdict.verdict(RunHistory(rows, summary={"status": "finished"})).said == said
    assert "from 0.750 to 0.750 in 1 step" in verdict.verdict(RunHistory(rows[:1])).said


def judged(*numbers, **options) -> verdict.Verdict:
    return verdict.verdict(evaluated(*numbers, **options))


def evaluated(before: int, after: int, curves: dict, status="finished", **options) -> RunHistory:
    """A run of 30 steps, of whose 100 held-out problems so many are solved before and after."""
    steps = {"reward/mean": 0.5, "timing/step_s": 10.0} | curves
    rows = [
        {"step": i, **{name: v[i] if isinstance(v, list) else v for name, v in steps.items()}}
        for i in range(30)
    ]
    rows[0]["eval/s/pass@1"], rows[-1]["eval/s/pass@1"] = before / 100, after / 100
    run = RunHistory(rows, options, {"status": status}, name=options.pop("name", ""))
    run.__dict__["evaluations"] = {
        step: {"s": {str(i): [float(i < solved)] for i in range(100)}}
        for step, solved in ((0, before), (29, after))
    }
    return run


RISING = [0.2 + 0.02 * i + 0.01 * (i % 3) for i in range(30)]
JUDGED = {
    "Solved 97% of held-out problems after 30 steps, 52% before: +45 points, p < 0.001, 5 min": (
        verdict.BETTER, "up", judged(52, 97, {"reward/mean": RISING})),
    "No clear change: solved 54% of held-out problems after 30 steps, 52% before: +2 points, "
    "p = 0.500, 5 min": (verdict.FLAT, "same", judged(52, 54, {"rollout/score": RISING})),
    "Nothing solved: solved 0% of held-out problems after 30 steps, 0% before: +0 points, "
    "p = 1.000, 5 min": (verdict.BROKEN, "warn", judged(0, 0, {"rollout/score": 0.0})),
    "Nothing solved, though the reward rose from 0.230 to 0.770: solved 0% of held-out problems "
    "after 30 steps, 0% before: +0 points, p = 1.000, 5 min": (
        verdict.HACKED, "warn", judged(0, 0, {"reward/mean": RISING, "rollout/score": 0.0})),
    "No clear change: solved 0% of held-out problems after 30 steps, 0% before: +0 points, "
    "p = 1.000, 5 min": (verdict.FLAT, "same", judged(0, 0, {"rollout/score": RISING})),
    "No clear change: solved 55% of held-out problems after 30 steps, 52% before: +3 points, "
    "p = 0.250, 5 min": (
        verdict.FLAT, "same", judged(52, 55, {"train/entropy": [1.0] * 15 + [0.01] * 15})),
    "No clear change: solved 53% of held-out problems after 30 steps, 52% before: +1 points, "
    "p = 1.000, 5 min": (verdict.CONTROL, "same", judged(52, 53, {}, shuffle_rewards=True)),
    "The control rose: solved 97% of held-out problems after 30 steps, 52% before: "
    "+45 points, p < 0.001, 5 min": (
        verdict.CONTROL, "warn", judged(52, 97, {}, shuffle_rewards=True)),
    "Worse: solved 45% of held-out problems after 30 steps, 52% before: -7 points, p = 0.016, "
    "5 min": (verdict.COLLAPSED, "down", judged(52, 45, {})),
    "Worse: solved 44% of held-out problems after 30 steps, 52% before: -8 points, p = 0.008, "
    "5 min": (verdict.CONTROL, "down", judged(52, 44, {}, shuffle_rewards=True)),
    "Collapsed: solved 12% of held-out problems after 30 steps, 52% before: -40 points, p < 0.001, "
    "5 min": (verdict.COLLAPSED, "down", judged(52, 12, {"reward/mean": RISING[::-1]})),
    "Collapsed: solved 50% of held-out problems after 30 steps, 52% before: -2 points, p = 0.500, "
    "and entropy is gone, 5 min": (
        verdict.COLLAPSED, "warn", judged(52, 50, {"train/entropy": [1.0] * 15 + [0.01] * 15})),
    "The reward rose from 0.230 to 0.770 alone: solved 51% of held-out problems after 30 steps, "
    "52% before: -1 points, p = 1.000, 5 min": (
        verdict.HACKED, "warn", judged(52, 51, {"reward/mean": RISING})),
    "Broken: every reward was 0 in all 30 steps": (
        verdict.BROKEN, "down", judged(0, 0, {"reward/mean": 0.0})),
    "Broken: 100% of the rewards could not be computed": (
        verdict.BROKEN, "down", judged(0, 0, {"reward/failed": 8, "samples_seen": 240})),
    "Broken: the loss or its gradient was not finite in 30 of 30 steps": (
        verdict.BROKEN, "down", judged(52, 97, {"train/loss": None})),
    "Stopped: no clear change: solved 52% of held-out problems after 30 steps, 52% before: "
    "+0 points, p = 1.000, 5 min": (verdict.STOPPED, "same", judged(52, 52, {}, "interrupted")),
}  # fmt: skip


@pytest.mark.parametrize("said", JUDGED)
def test_the_first_line_says_whether_it_worked(said):
    kind, tone, found = JUDGED[said]
    assert (found.kind, found.tone, found.said) == (kind, tone, said)
    assert bool(found.advice) == (kind != verdict.BETTER)  # the adapter is not recommended


def test_the_first_line_names_the_step_that_was_evaluated():
    run = evaluated(52, 97, {})
    run.rows.append({"step": 31, "timing/step_s": 10})
    assert "after step 29 (31 done), 52% before" in verdict.verdict(run).said


BETWEEN = {
    "Learnt from the rewards, as the control, which had them shuffled, did not: pass@1 of s: run "
    "0.970 (step 29) and other 0.550 (step 29): +0.420": ("up", "+42 points", 97, 55, True),
    "run is better than the control, but not than before training: pass@1 of s: run 0.530 (step "
    "29) and other 0.120 (step 29): +0.410": ("up", "+41 points", 53, 12, True),
    "run is better than the control, which rose too: pass@1 of s: run 0.970 (step 29) and other "
    "0.700 (step 29): +0.270": ("up", "+27 points", 97, 70, True),
    "No clear difference from the control: pass@1 of s: run 0.560 (step 29) and other 0.550 (step "
    "29): +0.010": ("warn", "", 56, 55, True),
    "The control is better: pass@1 of s: run 0.420 (step 29) and other 0.550 (step 29): -0.130": (
        "same", "+13 points", 42, 55, True),
    "run is better: pass@1 of s: run 0.970 (step 29) and other 0.550 (step 29): +0.420": (
        "up", "+42 points", 97, 55, False),
    "other is better: pass@1 of s: run 0.420 (step 29) and other 0.550 (step 29): -0.130": (
        "same", "+13 points", 42, 55, False),
    "No clear difference: pass@1 of s: run 0.560 (step 29) and other 0.550 (step 29): +0.010": (
        "warn", "", 56, 55, False),
}  # fmt: skip


@pytest.mark.parametrize("said", BETWEEN)
def test_the_first_line_of_a_comparison_says_which_run_is_better(said):
    tone, number, solved, by_other, is_control = BETWEEN[said]
    run = evaluated(52, solved, {}, name="run")
    other = evaluated(52, by_other, {}, name="other", shuffle_rewards=is_control)
    found = verdict.of_two([run, other])
    assert (found.said.partition(" (+")[0].partition(" (-")[0], found.tone) == (said, tone)
    assert found.number == number
    if is_control:  # is second, whichever is named first
        assert verdict.of_two([other, run]) == found
    other.__dict__["evaluations"] = {29: {"s": {"another problem": [1.0]}}}
    assert verdict.of_two([run, other]) is None


def test_a_control_that_is_not_as_far_says_nothing():
    run, other = (evaluated(52, 97, {}, name=n, shuffle_rewards=n == "b") for n in "ab")
    other.rows[:] = other.rows[:1]  # evaluated before its first step alone
    found = verdict.of_two([run, other])
    assert found.said.startswith("The control is not as far: ") and found.tone == "warn"


def test_scores_beyond_0_to_1_are_drawn_and_are_no_shares():
    run = evaluated(20, 60, {})
    for scores in (run.evaluations[0]["s"], run.evaluations[29]["s"]):
        scores |= {name: [1.2 * value or -1.0] for name, (value,) in scores.items()}
    drawn = charts.heatmap("s", problems.solved(run, "s"))
    assert [kind for kind, _, _ in drawn.strokes] == [f"heat heat{charts.LEVELS}"]
    assert "scored 0.600 of held-out problems" in verdict.verdict(run).said.lower()


def test_a_run_that_solves_more_is_recommended_though_some_completions_are_cut_off():
    assert not judged(52, 97, {"reward/mean": RISING, "rollout/truncated": 0.25}).advice
    cut = judged(0, 0, {"reward/mean": RISING, "rollout/score": 0.0, "rollout/truncated": 0.9})
    assert cut.is_warned


def test_what_the_start_has_warned_of_stands_beside_its_sign(tmp_path):
    for _ in range(2):  # a resumed run has said it twice
        RunFolder(tmp_path).add_note(0, f"warning: reward 'mine' {signs.EARNS_NOTHING} the answer")
    rows = [{"step": i, "rollout/score": 0.0} for i in range(3)]
    (sign,) = [s for s in signs.found(RunHistory(rows, folder=RunFolder(tmp_path)))
               if s.rule.title == signs.NEVER]  # fmt: skip
    warned = "warning: reward 'mine' gives 0 to the answer."
    assert sign.seen == f"No completion was graded as right, in 3 steps. {warned}"


def test_a_comparison_of_scores_on_a_scale_of_their_own_has_no_points():
    runs = [evaluated(52, solved, {}, name=name) for solved, name in ((97, "run"), (55, "other"))]
    for run in runs:  # a right one scores 10
        run.rows[-1]["eval/s/pass@1"] *= 10
        scores = run.evaluations[29]["s"]
        run.evaluations[29]["s"] = {each: [10 * of for of in scores[each]] for each in scores}
    assert verdict.of_two(runs).number == "+4.2"


def test_a_reward_that_is_only_measured_is_not_said_to_be_never_earned():
    rows = [
        {
            "step": i,
            "reward/mean": 0.5,
            "reward/accuracy": 0.0,
            "reward/mine": 0.5,
            "rollout/score": 0.5,
        }
        for i in range(30)
    ]
    for weight, wanted in (("accuracy=0", False), ("accuracy=0.0", False), ("accuracy", True)):
        run = RunHistory(rows, {"reward": [weight, "mine.py:mine"]})
        titles = [each.rule.title for each in signs.found(run)]
        assert ("A reward was never earned" in titles) == wanted, weight


# The rollouts in the page


def shown_step(folder: RunFolder, step: int) -> dict:
    return next(each for each in browser_data(folder)["steps"] if each["name"] == str(step))


def test_a_step_has_prompts_with_their_candidates_and_tokens(folder):
    first = replace(group("a", [1.0, 0.0]), advantages=(0.7, -0.7), chosen=(0,))
    folder.write_rows("rollouts", 3, list(rollout_rows([first, group("b", [0.5])])))
    known = {"pieces": ["He", "llo"], "logprobs": [-0.5, None], "gaps": [0.01234, None],
             "advantages": None, "left_out": 4}  # fmt: skip
    write_tokens(folder, 3, {1: known})
    step = shown_step(folder, 3)
    assert step["traced"] and step["file"] == "rollouts/step_000003.jsonl"
    assert [prompt["name"] for prompt in step["prompts"]] == ["a", "b"]
    first, second = step["prompts"][0]["candidates"]
    assert (first["advantage"], first["selected"], second["selected"]) == (0.7, True, False)
    assert "traced" not in first
    assert second["traced"] == {
        "pieces": ["He", "llo"], "logprobs": [-50, None], "left_out": 4, "gaps": [123, None],
    }  # fmt: skip


def write_texts(folder: RunFolder, step: int, texts: list[str]) -> None:
    drawn = tuple(completion(3, text=text) for text in texts)
    rows = rollout_rows([replace(group("a", [1.0] * len(texts)), completions=drawn)])
    folder.write_rows("rollouts", step, rows)


def test_long_texts_are_cut_in_the_middle_and_a_step_is_bounded(folder):
    texts = [("x" * 50_000) + f"end {i}" for i in range(40)]
    write_texts(folder, 1, texts)
    step = shown_step(folder, 1)
    assert len(json.dumps(step)) <= rollout_data.MOST_BYTES_OF_STEP
    begin, left_out, end = step["prompts"][0]["candidates"][7]["completion"]
    assert begin == "x" * len(begin) and end.endswith("end 7")
    assert len(begin) + left_out + len(end) == len(texts[7])


def test_of_a_large_step_some_prompts_are_shown(folder):
    folder.write_rows("rollouts", 1, rollout_rows([group(str(i), [1.0] * 8) for i in range(100)]))
    step = shown_step(folder, 1)
    assert (step["completions"], step["shown"]) == (800, 96)
    assert [prompt["name"] for prompt in step["prompts"]][::5] == ["0", "41", "83"]


def test_the_page_of_a_long_run_is_bounded(folder, monkeypatch):
    monkeypatch.setattr(rollout_data, "MOST_BYTES", 600_000)
    for step in range(1, 101):
        write_texts(folder, step, [f"{step} " * 2000] * 4)
    data = browser_data(folder)["steps"]
    assert len(data) == rollout_data.MOST_STEPS and data[-1]["name"] == "100"
    assert len(json.dumps(data)) < 700_000


def test_a_task_that_is_drawn_twice_is_two_prompts(folder):
    drawn = [group("a", [1.0, 0.0]), group("a", [0.0, 0.0]), group("a", [1.0])]
    assert [len(rows) for rows in rollout_data.grouped(list(rollout_rows(drawn)))] == [2, 2, 1]
    path = folder.write_rows("evals", 1, evaluation_rows({"s": drawn}))
    assert rollout_data.evaluation_scores(path, 0) == {
        "s": {"a: 7": [1.0, 0.0], "a: 7'": [0.0, 0.0], "a: 7''": [1.0]}
    }


def test_tokens_go_with_their_rollouts(tmp_path):
    folder = make_run(tmp_path / "run", 4, eval_every=2)
    assert all(step["traced"] for step in browser_data(folder)["steps"])
    folder.truncate_after(2, 2, 2)  # as a resumed run does
    folder.write_rows("rollouts", 3, list(rollout_rows([group("other", [1.0])])))
    data = browser_data(folder)
    assert [(step["name"], step["traced"]) for step in data["steps"]] == [
        ("1", True), ("2", True), ("3", False),
    ]  # fmt: skip
    assert [each["name"] for each in data["evals"]] == ["000000", "000002"]
    delete_up_to(folder, 2)
    assert [step["name"] for step in browser_data(folder)["steps"]] == ["3"]
    assert folder.steps_of("tokens") == []


def test_completions_of_eval_are_browsed_and_are_no_point_of_the_curve(tmp_path):
    folder = make_run(tmp_path / "run", 1, eval_every=1)
    groups = {"held_out": [group("a", [1.0, 0.0])]}
    rows = [r for p in ("base", "adapter") for r in evaluation_rows(groups, policy=p)]
    (folder.path / "evals" / "v000001.jsonl").write_bytes(b"".join(map(json_line, rows)))
    assert [prompt["name"] for prompt in browser_data(folder)["evals"][-1]["prompts"]] == [
        "held_out, base: a", "held_out, adapter: a",
    ]  # fmt: skip
    assert sorted(RunHistory.read(folder).evaluations) == [0, 1]


# Charts


@given(st.lists(st.floats(-LARGEST, LARGEST), min_size=1, max_size=4))
def test_any_values_can_be_drawn(values):
    points = list(enumerate(values))
    low, *_, high = charts.nice_ticks(min(values), max(values))
    assert low < high
    figure = charts.figure("t", {"a": ("c0", points), "b": ("c1", points[:1])})
    paths = [path[1:] for kind, path, _ in figure.strokes if kind in ("line", "dot")]
    numbers = [float(n) for path in paths for n in re.split("[MLh ]", path)]
    assert numbers and all(-1 <= n <= 101 for n in numbers)


def test_values_that_are_equal_but_for_rounding_can_be_drawn():
    assert charts.nice_ticks(0.9900000000000001, 0.9900000000000002)[0] < 0.99
    assert signs_of({"reward_mean": [0.1 + i * 1e-17 for i in range(1000)]}) == []


def test_a_fault_of_the_report_ends_no_run():
    notes = []
    with noting_errors(notes.append):
        raise ZeroDivisionError("float\ndivision")
    assert len(notes) == 1 and "ZeroDivisionError: float division" in notes[0]
    with pytest.raises(OSError), noting_errors(notes.append):
        raise OSError(28, "No space left on device")


def test_a_figure_carries_its_values():
    curves = {
        "a<b": ("c0", [(1, 0.25, 0.0, 0.5), (3, 0.75, 0.5, 1.0)]),
        "c": ("c0", [(2, 1.0), (3, 2.0)]),
    }
    figure = charts.figure("t", curves, marks=[2, 9], limits=[3.0])
    assert figure.values == {
        "steps": [1, 2, 3],
        "curves": [[[0.25, 0.0, 0.5], None, [0.75, 0.5, 1.0]], [None, [1.0], [2.0]]],
    }
    kinds = [kind for kind, *_ in figure.strokes if kind != "grid"]
    assert kinds == ["limit", "mark", "band", "line", "dot", "line dashed", "dot"]


def test_the_report_of_a_long_run_stays_small():
    curve = [(step, float(step)) for step in range(1, 10_001)]
    assert len(charts.thinned(curve)) == charts.MOST_POINTS
    assert charts.thinned(curve)[-1][0] == 10_000
    curves = {name: (name, curve) for name in ("c0", "c1")}
    assert len(json.dumps(charts.figure("time", curves).values)) < 20_000


# Several runs


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[Path]:
    parent = tmp_path_factory.mktemp("pair")
    return [make_run(parent / name, 6, lr=lr).path for name, lr in (("a", 2e-5), ("b <u>", 1e-4))]


def test_a_comparison_has_curves_options_and_evaluations(pair, capsys):
    assert cli.main(["report", *map(str, pair)]) == 0
    said, verdict = capsys.readouterr().out.splitlines()
    path = Path(said)
    assert path == pair[0].parent / "a-vs-b__u_.html"
    assert (
        verdict.startswith("No clear difference: pass@1 of ") and " (step 6): -0.025 (" in verdict
    )
    page = Page(path.read_text())
    assert "u" not in page.tags and "b <u>" in page.words
    differing = page.source.partition("Options that differ")[2].partition("</table>")[0]
    assert re.findall("<t[hd][^>]*>([^<]+)", differing) == [
        "a",
        "b &lt;u&gt;",
        "lr",
        "2e-05",
        "0.0001",
    ]
    carried = [json.loads(v) for k, v in page.attributes if k == "data-values"]
    assert carried and all(len(figure["curves"]) == 2 for figure in carried)
    assert "difference of the last, a - b <u>" in page.words


def test_runs_are_listed_and_one_whose_process_is_gone_was_killed(tmp_path, capsys):
    folder = make_run(tmp_path / "a", 1)
    make_run(tmp_path / "b", 1)
    for status in ("running", "killed"):
        assert cli.main(["report", str(tmp_path)]) == 0
        _, line, other = capsys.readouterr().out.splitlines()
        assert (line.split()[:2], other.split()[0]) == (["a", status], "b")
        assert "grpo" in line and " -> " in line
        page = write_report(tmp_path / "a").read_text()
        assert f"<small class='{status}'>{status}</small>" in page
        folder.close()


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [make_run(tmp_path / parent / "same", 1).path for parent in ("x", "y")]
    assert [run.name for run in read_all(runs)] == [str(path) for path in runs]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "no such folder"),
        (["empty"], "no run there"),
        (["run", "empty"], "empty is no run"),
        (["run", "--output", "x.html"], "output is for comparisons"),
        (["rows"], "a file of the run is damaged"),
        (["run", "other", "--output", "run/metrics.jsonl"], "exists and is no page"),
    ],
)
def test_what_cannot_be_reported_is_one_line(tmp_path, capsys, arguments, message, here):
    for name in ("run", "other", "rows"):
        make_run(tmp_path / name, 1)
    (tmp_path / "rows" / "rollouts" / "step_000001.jsonl").write_text('{"task": 1}\n')
    (tmp_path / "empty").mkdir()
    assert cli.main(["report", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("unslothrl: ") and message in line
    assert (tmp_path / "run" / "metrics.jsonl").read_text().startswith('{"step": 0')


def plain_difference(before: dict, after: dict, key: str = "pass@1") -> str:
    first, last = RunHistory(()), RunHistory(())
    first.__dict__["evaluations"] = {0: {"s": before}}
    last.__dict__["evaluations"] = {0: {"s": after}}
    return str(problems.difference((first, (0, 0.5)), (last, (0, 0.25)), "s", key))


def test_the_difference_of_evaluations_by_hand():
    before, after = ({str(i): scores for i in range(4)} for scores in ([0.0, 1.0], [1.0, 1.0]))
    # every problem gains a half; of the 16 ways to give signs two are as far from 0
    assert plain_difference(before, after) == "+0.500 (+0.500 to +0.500), p = 0.125"
    assert plain_difference(before, {"0": [1.0]}) == "-"  # other problems
    assert plain_difference(before, after, "best_of_n").startswith("+0.000")
    more = {name: scores * 2 for name, scores in after.items()}
    assert plain_difference(before, more, "best_of_n") == "-"  # the best of more completions
    assert plain_difference(before, after, "loss") == "-0.250"
    scores = {str(i): [float(i % 2)] for i in range(6)}  # paired by name, in whatever order
    turned = dict(reversed(scores.items()))
    assert plain_difference(scores, turned) == "+0.000 (+0.000 to +0.000), p = 1.000"

"""The report of SFT, DPO and reward models: what it says of a stage, and what it must not."""

import html
import re

import pytest
from report_runs import make_run, make_stage, of_stage

from unslothrl.commands.report import report as run_report
from unslothrl.tracking.report import signs
from unslothrl.tracking.report.history import RunHistory
from unslothrl.tracking.report.page import write_report

RL_WORDS = ("rollout", "completions", "pass@1", "sampler", "policy version", "learner", "collapse")
RIGHT = "Pairs whose better answer is preferred, share"
PAIRS = ["Loss", RIGHT, "Margin between the two answers"]
CHARTS = {
    "sft": ["Loss", "Token accuracy", "Entropy, nats per token"],
    "dpo": [*PAIRS, "Implicit rewards, beta x log-ratio to the reference",
            "Log-probability of an answer, nats"],
    "rm": [*PAIRS, "Score, mean of all answers"],
}  # fmt: skip
MACHINE = ["Gradient norm", "Learning rate", "Tokens per second", "Seconds of a step",
           "Peak memory"]  # fmt: skip


def visible(page):
    """The text of a page without its script and style."""
    body = re.sub(r"(?s)<(script|style).*?</\1>", "", page)
    return html.unescape(re.sub(r"<[^>]*>", " ", body.partition("<h2>Options</h2>")[0]))


def titles(page):
    return [html.unescape(each) for each in re.findall(r"<figcaption>(.*?)<", page)]


@pytest.mark.parametrize("command", CHARTS)
def test_a_page_is_of_its_stage(command, tmp_path):
    page = write_report(make_stage(tmp_path / "mine", command)).read_text()
    text = visible(page)
    shown = titles(page)
    assert shown[: len(CHARTS[command])] == CHARTS[command]
    assert [each.split(",")[0] for each in shown[len(CHARTS[command]) :]] == MACHINE
    assert not [word for word in (*RL_WORDS, "reward,") if word in text.lower()]
    assert ("reward" in text.lower()) == (command != "sft")
    for figure in ("24,000", "192", "12"):  # tokens, rows, steps
        assert f" {figure} " in text
    assert "Nothing stands out." in text
    first, last = (of_stage(command, "x", done)["x/loss"] for done in (0.0, 0.9))
    assert f"{first:.3f}  {last:.3f}  {last - first:+.3f}" in re.sub(" {2,}", "  ", text)
    assert ("its own reference" in text) == (command == "dpo")


def test_the_list_of_runs_and_comparisons_have_the_stages_figures(tmp_path, capsys):
    folders = [make_stage(tmp_path / name, name).path for name in CHARTS]
    run_report([str(tmp_path)])
    out = capsys.readouterr().out
    head, *lines = out.splitlines()
    assert "method" in head.split() and "pass@1" not in head and len(lines) == 3
    assert "0.700 -> 0.250" in out and "0.400 -> 0.760" in out
    run_report(list(map(str, folders)), str(tmp_path / "all.html"))
    page = (tmp_path / "all.html").read_text()
    text = visible(page).lower().replace("learner_shards", "")  # an option of two of them
    assert not [word for word in RL_WORDS if word in text]
    assert {"Loss: loss", "Loss: held_out loss", f"{RIGHT}: held_out accuracy"} <= set(titles(page))
    make_run(tmp_path / "rl", 6)
    run_report([str(folders[0]), str(tmp_path / "rl")], str(tmp_path / "two.html"))
    both = visible((tmp_path / "two.html").read_text())
    assert "pass@1" in both and "held-out loss" in both


def evaluated(key, value):
    """A change of an evaluation's figure: step -> value."""
    return lambda step: {f"eval/held_out/{key}": value(step)} if step % 3 == 0 else {}


SIGNS = {
    "The loss was not finite": (
        "sft", lambda step: {"train/loss": None} if step in (5, 7) else {},
        "in 2 steps, the first of them step 5",
    ),
    "The held-out loss rises: stop earlier": (
        "sft", evaluated("loss", lambda step: 1 + abs(step - 6) / 10),
        "On held_out it was 1.000 after step 6, and is 1.600 now.",
    ),
    "Held-out pairs are told apart no better than by chance": (
        "rm", evaluated("accuracy", lambda step: 0.5 + (0.02 if step % 2 else -0.02)),
        "preferred in 48% of the pairs",
    ),
    "The worse answers are preferred": (
        "dpo", evaluated("accuracy", lambda step: 0.3), "preferred in 30% of the pairs",
    ),
    "The margin grows while held-out accuracy falls": (
        "dpo", evaluated("accuracy", lambda step: 0.9 - step / 50),
        "preferred in 90% of the pairs after step 0, and is in 66% now",
    ),
    "The better answers became less likely, too": (
        "dpo", lambda step: {"train/reward_chosen": -0.1 * step},
        "11.0 nats below the reference's",
    ),
    "Nearly everything was known before": (
        "sft", evaluated("token_accuracy", lambda step: 0.98), "0.980 of the tokens were right",
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", SIGNS)
def test_a_sign(title, tmp_path):
    command, changes, seen = SIGNS[title]
    whole = RunHistory.read(make_stage(tmp_path / "x", command, eval_every=3))
    changed = [{**row, **changes(row["step"])} for row in whole.rows]
    (sign,) = signs.found(RunHistory(changed, whole.options))
    assert sign.rule.title == title and seen in sign.seen and sign.rule.advice
    assert signs.found(whole) == []

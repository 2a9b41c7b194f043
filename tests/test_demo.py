"""The demo: what it prints of its evaluations, and the whole of it."""

import io

import pytest
from fakes import completed
from python_process import python
from rich.console import Console

from unslothrl.commands.demo import Answers
from unslothrl.records import Group
from unslothrl.tracking.report.verdict import Verdict


def asked(problem: str, thought: str, answer: str, is_right: bool) -> Group:
    text = f"<think>{thought}</think>\n<answer>{answer}</answer>"
    task, completion = completed(text, problem=f"What is {problem}?")
    score = (float(is_right),)
    return Group(task, (completion,), {"accuracy": score}, score)


def test_each_evaluation_is_a_line_with_the_questions_that_were_wrong_at_first():
    file = io.StringIO()
    view = Answers(Console(file=file, width=80))
    before = [asked("9 - 4", "easy", "7", False), asked("1 + 1", "1+1=2", "2", True)]
    after = [asked("9 - 4", "9-4=5", "5", True), asked("1 + 1", "1+1=2", "[x]", False)]
    for step, groups in ((0, before), (4, after)):
        view.evaluation(step, {}, {"held_out": groups})
    head, first, last = file.getvalue().splitlines()
    assert head.split() == ["step", "right", "9", "-", "4"]
    assert first.split() == ["0", "50%", "█" * 9, "7", "✗"]
    assert last.split() == ["4", "50%", "█" * 9, "5", "✓"]
    view.finish(
        {"status": "finished", "report": "there.html", "command": "chat"}, Verdict("flat", "Solved")
    )
    said = file.getvalue()
    assert "<answer>7</answer>" in said and "<answer>5</answer>" in said
    assert "\nSolved\nreport: there.html\n" in said


@pytest.mark.real
@pytest.mark.slow
def test_the_demo_learns_to_subtract(tmp_path):
    done = python("-m", "unslothrl", "demo", "--output_dir", tmp_path, timeout=600)
    right = [line.split()[1] for line in done.stdout.splitlines() if "█" in line]
    assert len(right) == 5 and int(right[0][:-1]) < 60 < 85 < int(right[-1][:-1])
    assert "Solved" in done.stdout and len(list(tmp_path.glob("*/report.html"))) == 1

"""`unslothrl demo`: a run in this process, within a minute, told by what the model answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from unslothrl.records import Group
from unslothrl.runs.resolve import resolve
from unslothrl.runs.rl import run
from unslothrl.text import for_terminal
from unslothrl.tracking import origin
from unslothrl.tracking.metrics import Row
from unslothrl.tracking.report.rollout_data import answer_of
from unslothrl.tracking.report.signs import Sign
from unslothrl.tracking.report.verdict import NONE, Verdict
from unslothrl.tracking.terminal import Drawn, Terminal

OPTIONS = {
    "learner": "grpo", "recipe": "tiny-cpu", "cluster": "local", "engine": "transformers",
    "number_of_actors": 0, "max_steps": 16, "batch_size": 16, "save_every": 16,
    "checkpoint_every": 16, "eval_every": 4, "eval_problems": 60, "eval_candidates": 1,
    "eval_temperature": 0.1,
}  # fmt: skip
WATCHED, COLUMN = 4, 10  # questions, and the characters of each
SIDE_BY_SIDE = 2  # of them, at the end
BAR = 18  # characters
TITLE = """\
A model of 0.9 million parameters learns by reinforcement learning (GRPO): what led to a right
answer becomes likelier. It can add three-digit numbers, and guesses when it subtracts.
Below, held-out questions, which are never trained on."""
NEXT = (
    ("your GPU", origin.command("plan", "--gpu", "4090")),
    (
        "your task",
        origin.command(
            *("grpo", "--dataset", "problems.jsonl", "--reward", "mine.py:reward"),
            *("--max_new_tokens", 256, "--batch_size", 16, "--num_candidates", 8),
        ),
    ),
)


class Answers(Terminal):
    """Shows an evaluation as a line: the share that is right, and what some questions get."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self.before: Sequence[Group] = ()
        self.after: Sequence[Group] = ()
        self.watched: list[int] = []  # the first that are answered wrong

    def header(self, lines: Sequence[str]) -> None:
        for line in TITLE.splitlines():
            self.line(line)
        super().header([""])

    def stage(self, name: str) -> None:
        if self.live is not None:
            super().stage(name)

    def step(self, metrics: Row, step: int, total_steps: int) -> None:
        self.count(metrics, step, total_steps)

    def sample(self, groups: Sequence[Group]) -> None: ...

    def evaluation(self, step: int, metrics: Row, drawn: Drawn | None = None) -> None:
        self._end_phase()
        (self.after,) = (drawn or {}).values()
        if not self.before:
            self.before = self.after
            wrong = [place for place, group in enumerate(self.before) if not group.scores[0]]
            self.watched = wrong[:WATCHED]
            asked = [self.before[each].task.problem for each in self.watched]
            sums = [each.removeprefix("What is ").rstrip("?") for each in asked]
            self._row("step", "right", "", sums, "bold")
        right = sum(group.scores[0] for group in self.after) / len(self.after)
        said = [said_of(self.after[each]) for each in self.watched]
        self._row(str(step), f"{right:.0%}", "█" * round(BAR * right), said)

    def _row(self, step: str, right: str, bar: str, said: Sequence[str], style: str = "") -> None:
        columns = " ".join(f"{each:<{COLUMN}}" for each in said)
        line = f"{step:>4} {right:>6} {bar:<{BAR}}  {columns}"
        self.line(line.rstrip(), style, is_cut=True)

    def finish(
        self, summary: Mapping[str, Any], verdict: Verdict = NONE, signs: Sequence[Sign] = ()
    ) -> None:
        if summary["status"] != "finished":
            super().finish(summary, verdict, signs)
            return
        self.__exit__()
        table = Table(box=None, padding=(1, 2, 0, 1))
        for head in ("question", "before", "after"):
            table.add_column(head, overflow="fold")
        for each in self.watched[:SIDE_BY_SIDE]:
            pair = (self.before[each], self.after[each])
            texts = [group.completions[0].text.replace("\n", " ") for group in pair]
            table.add_row(*map(for_terminal, (pair[0].task.problem, *texts)))
        self.console.print(table)
        self.line("")
        self.line(verdict.said, "bold")
        lines = [("report", summary["report"]), ("ask it", summary["command"])]
        self._labelled([*lines, *NEXT])


def said_of(group: Group) -> str:
    """The answer of its completion, and whether it is right."""
    said = answer_of(group.completions[0].text)
    return f"{'none' if said is None else for_terminal(said[:7])} {'✓' if group.scores[0] else '✗'}"


def demo(**flags: Any) -> int:
    """-> the exit code of the run."""
    return run(resolve({**OPTIONS, **flags}), Answers())

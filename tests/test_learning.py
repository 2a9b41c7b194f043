"""A short run of the embedded default must learn, and learn from its rewards; `make learn-test`.

In one process, which takes a third of the time. bench/results/embedded-cpu.json has whole runs with
Ray and vLLM: pass@1 from 0.52 to 0.90 in ten steps for each of three seeds, and 0.49 to 0.52 where
rewards are shuffled within their group.
"""

from pathlib import Path

import pytest
from python_process import python
from runs_compared import rows

pytestmark = pytest.mark.slow

# 400 answers: the standard error of pass@1 is at most 0.05 (100 problems, each counted as one).
SHORT = "--learner grpo --max_steps 10 --eval_every 10 --eval_problems 100 --eval_candidates 4"
ALONE = "--cluster local --number_of_actors 0 --engine transformers"


def solved_by(flags: str, folder: Path) -> dict[int, float]:
    """pass@1 on the held-out set by step, of a run with these flags."""
    program = Path(__file__).parents[1] / "train_distributed.py"
    python(program, "--run_name", "x", *flags.split(), cwd=folder, timeout=600)
    found = rows(folder / "runs" / "x" / "metrics.jsonl")
    name = "eval/held_out/pass@1"
    return {row["step"]: row[name] for row in found if name in row}


@pytest.mark.parametrize(
    ("more", "least", "most"),
    [("", 0.75, 1.0), ("--shuffle_rewards", 0.35, 0.68)],
    ids=["rewards", "shuffled rewards"],
)
def test_ten_steps_raise_what_is_solved_only_if_rewards_belong_to_answers(
    more, least, most, tmp_path
):
    solved = solved_by(f"{SHORT} {ALONE} {more}", tmp_path)
    assert 0.35 < solved[0] < 0.68, solved
    assert least < solved[10] <= most, solved


@pytest.mark.parametrize(
    ("more", "most_before", "least", "most"),
    [
        ("", 0.4, 0.8, 1.0),
        ("--max_steps 7 --shuffle_rewards", 0.4, 0.2, 0.55),
        ("--max_steps 7 --environment_options swapped=true", 0.0, 0.0, 0.05),
    ],
    ids=["rewards", "shuffled rewards", "the calculator's answers to others"],
)
def test_a_tool_is_learnt_only_if_its_answers_are_of_use(more, most_before, least, most, tmp_path):
    solved = solved_by(f"--recipe calculator-cpu {ALONE} {more}", tmp_path)
    first, last = solved[0], solved[max(solved)]
    assert first <= most_before and least <= last <= most, solved

"""What a user has written is tried before a model is loaded: one line that names file and line."""

import json
from contextlib import closing
from dataclasses import replace

import pytest
from fakes import task
from few_cases import few

from unslothrl import rewards
from unslothrl.commands import cli
from unslothrl.rewards.scorer import Scorer
from unslothrl.training import trial

pytestmark = pytest.mark.real

BASE = (
    "--learner grpo --model embedded --dataset {rows} --cluster local --engine transformers "
    "--number_of_actors 0 --max_steps 1 --batch_size 2 --num_candidates 2 --eval_every 0 "
    "--output_dir {folder}/runs"
)
REWARDS = """
def typo(completion, answer):
    return lenght(completion)
def column(completions, level, **kwargs):
    return [float(n) for n in level]
def short(completions, **kwargs):
    return [1.0]
def nothing(completion):
    completion.strip()
def messages(completions, **kwargs):
    return [len(c.pop()) for c in completions]
async def later(completion):
    return undefined
def fine(completion, answer):
    if "<answer>" not in completion: raise ValueError("no tags")
    return 1.0
"""


@pytest.fixture
def refused(tmp_path, capsys):
    """-> a function that runs the command and returns the line that it ends with."""
    rows = tmp_path / "rows.jsonl"
    each = [{"problem": f"What is 10{i} + 200?", "answer": f"30{i}"} for i in range(6)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in each))

    def run(*flags):
        code = cli.main([*BASE.format(rows=rows, folder=tmp_path).split(), *map(str, flags)])
        out, err = capsys.readouterr()
        assert code == 2 and "loading" not in out, out
        *_, line = err.strip().splitlines()
        return line

    return run


@pytest.mark.parametrize(
    ("function", "said"),
    few(
        [
            ("typo", "NameError: name 'lenght' is not defined (mine.py, line 3)"),
            ("nothing", "returned no number: None (mine.py, line 8)"),
            ("column", "missing 1 required positional argument: 'level'"),
            ("short", "returned no list of 2: [1.0] (mine.py, line 6)"),
            ("messages", "'Text' object has no attribute 'pop' (mine.py, line 11)"),
            ("later", "NameError: name 'undefined' is not defined (mine.py, line 13)"),
        ],
        2,
    ),
)
def test_a_reward_that_fails_whatever_it_reads(function, said, refused, tmp_path):
    (tmp_path / "mine.py").write_text(REWARDS)
    line = refused("--reward", f"{tmp_path}/mine.py:{function}")
    assert line.startswith(f"unslothrl: reward {function} fails on made-up completions: ")
    assert said in line and line.endswith(": fix it")


ENVIRONMENT = """
class Mine:
    def __init__(self, level=1):
        self.level = int(level)
    def reset(self, task, seed):
        return None
    def step(self, action):
        return {"reward": self.levl}
"""


def test_an_environment_that_fails_in_its_first_turn_or_takes_no_such_options(refused, tmp_path):
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    named = ("--environment", f"{tmp_path}/env.py:Mine")
    assert "levl" in (line := refused(*named)) and "env.py line 8" in line
    assert "'x'" in refused(*named, "--environment_options", "level=x")
    assert "got an unexpected keyword argument 'lvl'" in refused(
        *named, "--environment_options", "lvl=2"
    )


OBJECTIVE = """
from unslothrl.algorithms.objective import Objective
def clip(ratio, logprobs, advantages, clip):
    return {body}
OBJECTIVE = Objective(clip=clip)
"""
BY_ZERO = """
from unslothrl.algorithms.objective import Objective
def by_range(rewards):
    return [[r / (max(group) - min(group)) for r in group] for group in rewards]
OBJECTIVE = Objective(advantage=by_range)
"""


@pytest.mark.parametrize(
    ("body", "said"),
    few(
        [
            ("-(ratio * advantages).mean(), ratio > 2", "line 3, clip clip: it must return"),
            ("ratio @ nothing", "line 4, clip clip: NameError: name 'nothing' is not defined"),
            ("-(ratio.detach() * advantages), ratio > 2", "its loss has no gradient"),
        ]
    ),
)
def test_an_objective_of_the_wrong_shape(body, said, refused, tmp_path):
    (tmp_path / "mine_objective.py").write_text(OBJECTIVE.replace("{body}", body))
    assert said in refused("--learner", tmp_path / "mine_objective.py")
    (tmp_path / "mine_objective.py").write_text(BY_ZERO)  # in a group of equal rewards
    assert "ZeroDivisionError" in refused("--learner", tmp_path / "mine_objective.py")


BY_MEDIAN = """
from statistics import mean, median
from unslothrl.algorithms.objective import Objective
def by_median(rewards):
    def of(group):
        middle = median(group)
        spread = median(abs(r - middle) for r in group)
        return [(r - mean(group)) / (spread + 1e-8) for r in group]
    return list(map(of, rewards))
OBJECTIVE = Objective(advantage=by_median)
"""


def test_an_advantage_that_divides_by_almost_0_is_refused(refused, tmp_path):
    (tmp_path / "median.py").write_text(BY_MEDIAN)  # of 1, 0, 0, 0 the deviation's median is 0
    said = refused("--learner", tmp_path / "median.py")
    assert "median.py, advantage: up to 75,000,000 for rewards such as (1.0, 0.0, 0.0, 0.0)" in said


def test_a_reward_that_refuses_some_texts_is_taken(tmp_path):
    (tmp_path / "mine.py").write_text(REWARDS)
    with closing(Scorer(rewards.choose((f"{tmp_path}/mine.py:fine",)))) as scorer:
        trial.try_rewards(scorer, task("0"))


ANSWERS = """
import re
def tags(completion, answer): return float(f"<answer>\\n{answer}" in completion)
def boxed(completions, answers):
    return [float(f"boxed{{{a}}}" in c) for c, a in zip(completions, answers)]
def number(completion, answer): return float(completion == 461)
def hash(completion, answer): return float(f"#### {answer}" in completion)
"""


def test_a_reward_that_never_finds_the_right_answer_is_noted(tmp_path):
    (tmp_path / "mine.py").write_text(ANSWERS)
    names = [f"{tmp_path}/mine.py:{name}" for name in ("tags", "boxed", "number", "hash")]
    with closing(Scorer(rewards.choose(tuple(names)))) as scorer:
        notes = trial.try_rewards(scorer, replace(task("0"), answer="461"))
        assert trial.try_rewards(scorer, replace(task("0"), answer=None)) == []
    assert [note.split()[2] for note in notes] == ["number", "hash"]
    assert "gives 0 to the right answer" in notes[0]


def test_a_reward_that_reads_the_number_of_a_sentence_is_not_noted(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def last(completion, answer):\n"
        "    return float(f'<answer>\\n{answer.split()[-1]}\\n' in completion)"
    )
    with closing(Scorer(rewards.choose((f"{tmp_path}/mine.py:last",)))) as scorer:
        told = replace(task("0"), answer="Of 928, 467 are taken: 1,461")
        assert trial.try_rewards(scorer, told) == []


def test_answers_that_are_sentences_are_named(tmp_path, capsys):
    rows = [{"problem": f"{n} + 1", "answer": f"The sum of both is {n + 1}."} for n in range(9)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = BASE.format(rows=path, folder=tmp_path).split()
    assert cli.main(["train", *arguments, "--reward", "boxed"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "answers are sentences, such as 'The sum of both is" in said
    assert "(the answer: The sum of both is" in said  # beside a sample that is not right

"""The think-and-answer rewards against hand-made completions."""

from contextlib import closing

import pytest
from fakes import completed

from unslothrl import rewards
from unslothrl.data.formats import UnusableRow
from unslothrl.errors import UserError
from unslothrl.rewards import builtin
from unslothrl.rewards.builtin import countdown, search, text
from unslothrl.rewards.reward import IN_SANDBOX, Reward
from unslothrl.rewards.scorer import Scorer
from unslothrl.tracking.metrics import NOT_COMPONENTS

GOOD = "<think>1+1=2</think>\n<answer>2</answer>"


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (GOOD, "2", 1.0),
        ("<answer>3</answer> no: <answer>2</answer>", "2", 1.0),  # the last one counts
        ("<answer>2</answer> no: <answer>3</answer>", "2", 0.0),
        ("<answer>1,234</answer>", "1234", 1.0),
        ("<answer>1,2</answer>", "12", 0.0),
        ("<answer>12</answer>", "1,2", 0.0),
        ("2", "2", 0.0),  # no tags
        ("<answer>2", "2", 0.0),  # cut off: "2" may have become "25"
    ],
)
def test_accuracy(completion, answer, expected):
    assert text.accuracy(completion, answer) == expected


@pytest.mark.parametrize(
    ("reward", "completion", "expected"),
    [
        (text.think_answer_format, GOOD, 1.0),
        (text.think_answer_format, "<think>a\nb</think><answer>c\nd</answer>", 1.0),
        (text.think_answer_format, "well, " + GOOD, 0.0),
        (text.think_answer_format, "<answer>2</answer><think>1+1</think>", 0.0),
        (text.think_answer_format, "<think>1+1=2</think> so <answer>2</answer>", 0.0),
        (text.tag_count, GOOD, 1.0),
        (text.tag_count, GOOD + "x" * 30, 0.85),  # 1 - 5 * 30 * 0.001
        (text.tag_count, GOOD + "x" * 5000, 0.0),  # bounded: not a punishment for being right
        (text.tag_count, "<think><think></think>", 0.25),  # a tag that stands twice does not count
    ],
)
def test_format_and_tag_count(reward, completion, expected):
    assert reward(completion) == pytest.approx(expected)


BOOKING = '{"name": "Novak", "time": "19:30", "people": 4}'


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (BOOKING, 1.0),
        ('{"people": 4.0, "time": "19:30",\n "name": "Novak"}', 1.0),  # any order, 4.0 is 4
        ("<think>{4}</think>\nHere it is:\n```json\n" + BOOKING + "\n```\nAnything else?", 1.0),
        ("```\n[]\n```\n```\n" + BOOKING + "\n```", 1.0),  # the last block
        ("```python\nx = 1\n```\nSo:\n```json\n" + BOOKING + "\n```", 1.0),
        ("```" + "\n" * 100_000, 0.0),  # at once: nothing else ends a reward in this process
        ("```\n" + " " * 100_000, 0.0),
        ("Here it is: " + BOOKING, 0.0),  # prose around it is no JSON
        (BOOKING[:-1], 0.0),
        (BOOKING.replace("4", '"4"'), 0.0),
        (BOOKING.replace("4", "true"), 0.0),
        (BOOKING.replace("4", "5"), 0.0),
        (BOOKING.replace("4", "4, " + '"extra": 1'), 0.0),
        (BOOKING.replace("4", "5, " + '"people": 4'), 0.0),  # a key twice
        (BOOKING.replace("4", "NaN"), 0.0),
        (BOOKING.replace("4", "1e999999999999999999999"), 0.0),
        ("[" * 100_000, 0.0),
        ("", 0.0),
    ],
)
def test_json(completion, expected):
    assert builtin.load("json").grade(completion, BOOKING) == expected


def test_json_values_are_told_apart():
    grade = builtin.load("json").grade
    assert grade("true", "1") == grade("1", "true") == grade('"1"', "1") == grade("null", "0") == 0
    assert grade("1.10", "1.1") == grade("0.1e1", "1") == grade("[1, {}]", "[1.0, {}]") == 1
    assert grade("2", "1", "2") == 1  # any of the golds
    assert grade("[4]", "4") == 0
    with pytest.raises(ValueError):  # whatever the completion: the data is wrong
        grade("Paris", "Paris")


def test_every_file_of_builtin_describes_a_reward():
    assert builtin.names() == (
        "accuracy", "boxed", "code", "countdown", "format", "json", "search", "tags",
        "think_answer_tags",
    )  # fmt: skip
    for name in builtin.names():
        reward = builtin.load(name)
        file = builtin.TOGETHER.get(name, name)
        assert reward.function.startswith(f"unslothrl.rewards.builtin.{file}:")
        assert (reward.trials is not None) == (reward.runs == IN_SANDBOX)
        assert bool(reward.read) == bool(reward.columns)


def test_a_column_of_a_reward_is_read_by_its_name():
    reward = Reward(len, columns=("words", "meta.level"))
    row = {"words": 3, "meta": '{"level": "hard"}', "other": 1}
    assert reward.read_row(row) == {"words": 3, "meta.level": "hard"}
    with pytest.raises(UnusableRow, match=r"column words is missing; the row has meta: the rew"):
        reward.read_row({"meta": {"level": 1}})
    with pytest.raises(UnusableRow, match="column words is empty"):
        reward.read_row({"words": None})


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("(44 - 19) + 35", 1.0),
        ("35 + 44 - 19 = 60", 1.0),
        ("-(19 - 44) + 35", 1.0),
        ("35*44/19*19 - 35*44 + 60", 0.0),  # numbers used twice
        ("44 + 19 - 35", 0.0),  # 28
        ("60", 0.0),
        ("44 - 19 + 35 + 0", 0.0),
        ("44 - 19 + 35.0", 0.0),
        ("__import__('os').system('true')", 0.0),
        ("9**9**9", 0.0),
        ("35/(19-19)", 0.0),
        ("(" * 400, 0.0),
        ("44 - 19 + 35 # sixty", 0.0),
        ("44 - 19 + 35 = 61", 0.0),
        ("--44 - 19 + 35", 0.0),
        ("35 - -44 - 19", 0.0),  # 44 is given, -44 is not
        ("4_4 - 19 + 35", 0.0),
    ],
)
def test_countdown(answer, expected):
    completion = f"<think>x</think><answer>{answer}</answer>"
    assert countdown.solves(completion, [44, 19, 35], 60) == expected
    assert countdown.solves(answer, [44, 19, 35], 60) == 0  # no tags


@pytest.mark.parametrize(
    ("answer", "numbers", "target", "expected"),
    [
        ("(1 / 3) * 3 * 7", [1, 3, 3, 7], 7, 1.0),
        ("3 / (1 - 1 / 4)", [3, 1, 1, 4], 4, 1.0),
        ("5 - -3", [5, -3], 8, 1.0),
        ("5 * (-3)", [5, -3], -15, 1.0),
        ("5 - 3", [5, -3], 2, 0.0),  # 3 is not given
        ("3 - -3", [3, -3], 6, 1.0),
        ("-3 - -3", [-3, -3], 0, 1.0),
        ("3 + 3", [3, -3], 6, 0.0),
    ],
)
def test_countdown_is_exact(answer, numbers, target, expected):
    assert countdown.solves(f"<answer>{answer}</answer>", numbers, target) == expected


@pytest.mark.parametrize(
    ("answer", "golds", "expected"),
    [
        ("The Beatles", "Beatles | Fab-Four", 1.0),
        ("beatles.", "Beatles | Fab-Four", 1.0),
        ("a  Fab-Four", "Beatles | Fab-Four", 1.0),
        ("beatles and more", "Beatles | Fab-Four", 0.0),
        ("", "A", 0.0),
        ("the", "A", 0.0),
        ("a", "A", 1.0),
        ("?", "?", 1.0),
        ("", "The The", 0.0),
        ("5", "-5", 0.0),
        ("\u22125", "-5", 1.0),
        ("15", "1.5", 0.0),
        ("C", "C++", 0.0),
        ("c++", "C++", 1.0),
        ("1,000", "1000", 1.0),
        ("30", "3-0", 0.0),
        ("12", "1/2", 0.0),
        ("25 %", "25%", 1.0),
        ("well known", "well-known", 0.0),  # as SQuAD has it
        ("wellknown", "well-known", 1.0),
        ("Yes!", "yes", 1.0),
        ("x + y", "x+y", 1.0),
        ("3 - 0", "3-0", 1.0),
        ("O'Neill", "oneill", 1.0),
        ("a" + 100_000 * " " + "b", "a b", 1.0),  # in linear time
    ],
)
def test_search_keeps_what_makes_another_answer(answer, golds, expected):
    """But for articles, case and points it matches exactly."""
    assert search.exact_match(f"<answer>{answer}</answer>", *golds.split(" | ")) == expected
    assert search.exact_match(answer, *golds.split(" | ")) == 0  # no tags


@pytest.mark.parametrize(
    "pair",
    [
        "x<5 | x>5", "x < 5 | x > 5", "x <= 5 | x < 5", "-x | x", "-2x | 2x", "-sin(x) | sin(x)",
        "1e-5 | 1e5", "1e+5 | 1e-5", "10^{-5} | 10^{5}", "5! | 5", "n! | n", "(x+1)! | (x+1)",
        "x != y | x = y", "x == y | x != y", "x + y | x - y", "x*y | x/y", "x^2 | x2", "!x | x",
        "f'(x) | f(x)", "3x-2 | 3x+2", "2 * 3 | 2 / 3", "x = -5 | x = 5", "e^-x | e^x",
        "p -> q | q -> p", "temperature > 5 | temperature < 5", "sin(x)-cos(x) | sin(x)+cos(x)",
    ],
)  # fmt: skip
def test_search_keeps_the_signs_of_mathematics(pair):
    one, other = pair.split(" | ")
    assert search.exact_match(f"<answer>{one}</answer>", other) == 0
    assert search.exact_match(f"<answer>{other}</answer>", one) == 0
    assert search.exact_match(f"<answer>{one}</answer>", one) == 1


def test_any_of_several_gold_answers_is_right():
    several = {"answers": ["7", "seven"]}
    made = [f"<answer>{text}</answer>\\boxed{{{text}}}" for text in ("7", "seven", "8")]
    with closing(Scorer(rewards.choose(("accuracy", "boxed")))) as scorer:
        found = scorer.score([completed(text, 1, "7", several) for text in made])
    assert found.rewards == {"accuracy": [1.0, 1.0, 0.0], "boxed": [1.0, 1.0, 0.0]}


@pytest.mark.parametrize("name", rewards.TAKEN)
def test_a_function_is_not_called_as_a_figure_of_every_run(name, tmp_path):
    """Its metric would be written over the run's own, or over the punishment's reward."""
    path = tmp_path / "mine.py"
    path.write_text(f"def {name}(completion): return 1.0\n")
    with pytest.raises(UserError, match=f"{name} is a figure of every run: rename the function"):
        rewards.choose((f"{path}:{name}",))
    assert {each.removeprefix("reward/") for each in NOT_COMPONENTS} < set(rewards.TAKEN)

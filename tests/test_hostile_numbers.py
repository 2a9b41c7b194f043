"""Rewards and scores of an environment that are out of bounds: each costs its episode."""

import pytest
from environment_files import Script, play_with, written
from few_cases import few

from unslothrl.actors.episodes import Rules
from unslothrl.environments.host import Setup

pytestmark = pytest.mark.real

GIVES = """
class Gives:
    max_turns = 2
    def __init__(self, reward="0.0", score="None", last="0.0"):
        self.reward, self.score, self.last = eval(reward), eval(score), eval(last)
    def reset(self, task): ...
    def step(self, action):
        return "go on", self.reward, False, False, {"score": self.score}
    def finish(self):
        return self.last
"""


def played(folder, rules=None, **options):
    setup = Setup(written(folder, GIVES), "Gives", options)
    return play_with(setup, Script("x$", "y$"), rules=rules)


@pytest.mark.parametrize(
    ("reward", "reason"),
    few(
        [
            ("1e308", "its reward is 1e+308"),
            ("-1e200", "its reward is -1e+200"),
            ("10**400", "its reward is nan"),
            ("10**5000", "its reward is nan"),
            ("b'1.0'", "its reward is b'1.0'"),
            ("6e11", "its rewards come to 1.2e+12"),
            ("-6e11", "its rewards come to -1.2e+12"),
        ]
    ),
)
def test_a_reward_beyond_the_bound_of_rewards_costs_the_episode(reward, reason, tmp_path):
    lost = played(tmp_path, reward=reward)
    assert lost.lost.startswith(f"{reason}:")
    assert (lost.reward, lost.completion.is_lost) == (0.0, True)


def test_the_rewards_of_an_episode_are_bounded_as_they_are_made_one(tmp_path):
    assert played(tmp_path, Rules(turn_rewards="last"), reward="6e11").reward == 6e11
    halved = played(tmp_path, Rules(turn_rewards="discounted", discount=0.5), reward="6e11")
    assert halved.reward == 9e11
    lost = played(tmp_path, reward="6e11", last="6e11")
    assert lost.lost.startswith("its rewards come to 1.8e+12")
    assert played(tmp_path, last="1e13").lost.startswith("its finish is 1e+13")


@pytest.mark.parametrize("score", few(["5", "-7", "1.01", "-0.01", "float('nan')", "'1'"]))
def test_a_score_that_is_not_from_0_to_1_costs_the_episode(score, tmp_path):
    reason = "finite number" if score in ("float('nan')", "'1'") else f"is {score}: give 0 to 1"
    assert reason in played(tmp_path, score=score).lost


@pytest.mark.parametrize(
    ("score", "taken"),
    few([("0.1 * 3 + 0.7000000001", 1.0), ("0", 0.0), ("1", 1.0), ("-1e-9", 0.0)]),
)
def test_a_score_from_0_to_1_is_taken_whatever_its_rounding(score, taken, tmp_path):
    assert (played(tmp_path, score=score).score, played(tmp_path, score=score).lost) == (taken, "")

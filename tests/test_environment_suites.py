"""Environments of GEM, TextArena, reasoning-gym, OpenEnv and verifiers, each with its packages in a
virtual environment of its own: an episode worked out by hand.

`make suite-test` runs this; UNSLOTHRL_SUITES names a folder that keeps the virtual environments.
"""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from environment_files import Script, ended, play_with
from suites import EXAMPLES, FOLDER, VERIFIERS_PACKAGE, installed, openenv_server
from test_broken_environments import nothing_is_left  # noqa: F401

from unslothrl import environments
from unslothrl.actors.episodes import Played
from unslothrl.environments.host import Host, Setup
from unslothrl.errors import UserError

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("nothing_is_left")]

SEED = 5  # of the episodes
CLASSES = {
    "gem": "Gem", "textarena": "TextArena", "reasoning_gym": "ReasoningGym", "openenv": "OpenEnv",
    "verifiers": "Verifiers",
}  # fmt: skip


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Callable[[str], str]:
    folder = Path(os.environ.get(FOLDER) or tmp_path_factory.mktemp("suites"))
    return lambda suite: installed(suite, folder)


@pytest.fixture
def verifiers(tmp_path, monkeypatch) -> dict[str, object]:
    """Options of an environment of our own, in a module that verifiers finds by its name."""
    (tmp_path / "guess_v1.py").write_text(VERIFIERS_PACKAGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return {"taskset": "guess-v1"}


def setup_of(python: str, suite: str, **options) -> Setup:
    example = f"{EXAMPLES}/{suite}.py:{CLASSES[suite]}"
    return environments.setup_of(example, options=options, python=python)


def played(python: str, suite: str, replies: list[str], **options) -> Played:
    setup = setup_of(python, suite, **options)
    script = Script(*(f"{reply}$" for reply in replies))
    result = play_with(setup, script, most=3000, turn=100, seed=SEED)
    ended()
    assert not result.lost and len(result.replies) == len(replies)
    return result


def turns(episode: Played) -> list[tuple[str, float]]:
    return [(turn.observation, turn.reward) for turn in episode.completion.transcript.turns]


def guesses(most: int) -> tuple[int, int, str]:
    """-> (the number, another, what is said of that)"""
    secret = random.Random(SEED).randint(1, most)
    wrong = 3 if secret != 3 else 4
    return secret, wrong, "lower" if wrong > secret else "higher"


def test_gem(python):
    secret, wrong, hint = guesses(10)
    replies = [f"\\boxed{{{wrong}}}", f"\\boxed{{{secret}}}"]
    episode = played(python("gem"), "gem", replies, env_id="game:GuessTheNumber-v0-easy")
    said = f"At turn 1, you guessed {wrong}, and the target number is {hint} than {wrong}."
    assert turns(episode) == [(said, 0.0), ("", 1.0)]
    assert episode.reward == 1.0
    prompt = episode.completion.transcript.prompt
    assert prompt.startswith("<|im_start|>user\nYou are playing Guess The Number.")
    assert "between 1 and 10 (inclusive) within 4 turns" in prompt


def test_textarena(python):
    secret, wrong, hint = guesses(20)
    options = {"env_id": "GuessTheNumber-v0"}
    episode = played(python("textarena"), "textarena", [f"[{wrong}]", f"[{secret}]"], **options)
    assert turns(episode) == [(f"The target number is {hint}.", 0.0), ("", 1.0)]
    assert (episode.reward, episode.score) == (1.0, 1.0)


def test_reasoning_gym(python):
    draw = random.Random(SEED)
    draw.randint(2, 2), draw.randint(1, 1)  # how many terms, of how many digits
    left, right = draw.randint(0, 10), draw.randint(0, 10)
    options = {
        "dataset": "basic_arithmetic", "min_terms": 2, "max_terms": 2, "max_digits": 1,
        "allow_parentheses": False, "operators": ["+"],
    }  # fmt: skip
    for reply, score in ((f"<answer>{left + right}</answer>", 1.0), ("no", 0.0)):
        episode = played(python("reasoning_gym"), "reasoning_gym", [reply], **options)
        assert f"user\nCalculate {left} + {right}.<" in episode.completion.transcript.prompt
        assert (episode.reward, episode.score) == (score, score)


def test_openenv(python, tmp_path):
    secret = random.Random(SEED).randint(90, 99)
    replies = ["7", "1" * 41, json.dumps({"guess": str(secret)})]
    with openenv_server(python("openenv"), tmp_path) as url:
        options = {"base_url": url, "low": 90, "most": 3}
        episode = played(python("openenv"), "openenv", replies, **options)
    refused = "error: no such action: write guess in JSON"
    assert turns(episode) == [("wrong", -0.25), (refused, 0.0), ("", 0.75)]
    assert episode.completion.transcript.prompt.startswith(
        "<|im_start|>user\nGuess my number, at least 90."
    )


def test_verifiers(python, verifiers):
    """Its reward, and half of that of its task; also where the turns are used up."""
    episode = played(python("verifiers"), "verifiers", ["none", str(SEED)], **verifiers)
    assert turns(episode) == [("Wrong.", 0.0), ("", 1.0 + 0.5 * 1 / 2)]
    assert (episode.reward, episode.score) == (1.25, 1.0)
    assert episode.completion.transcript.prompt == (
        "<|im_start|>system\nDigits only.<|im_end|>\n<|im_start|>user\nGuess.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    episode = played(python("verifiers"), "verifiers", ["1", "2", "x"], **verifiers)
    assert [reward for _, reward in turns(episode)] == pytest.approx([0.0, 0.0, 0.5 * 2 / 3])
    assert episode.reward == pytest.approx(0.5 * 2 / 3)


def test_a_server_that_does_not_answer_is_named_at_the_start(python):
    setup = setup_of(python("openenv"), "openenv", base_url="http://me:secret@127.0.0.1:9")
    with pytest.raises(UserError, match=r"no OpenEnv server answers at 127\.0\.0\.1:9"):
        Host(setup).start()

"""docs/environments.md: its files are written as they stand, and its commands train."""

import json
import random
import re
from pathlib import Path

import environments_page
import numpy
import pytest
from environment_files import ECHO, Script, asked, call, play_with, tool, written
from runs_compared import rows

from unslothrl.actors.episodes import Rules
from unslothrl.commands import cli
from unslothrl.environments.host import Setup

pytestmark = pytest.mark.real

FEW = {  # what a documented command is run with, in full: 8 episodes a step
    "max_steps": 2, "batch_size": 2, "num_candidates": 4, "topk": 4, "eval_every": 0,
    "cluster": "local", "engine": "transformers", "number_of_actors": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    for name, text in environments_page.files().items():
        (folder / name).write_text(text)
    return folder


def trained(command: str, folder: Path, monkeypatch) -> list[dict]:
    """Runs a documented command, shorter. -> its episodes, and checks the record of both steps."""
    monkeypatch.chdir(folder)
    name = f"run{len(list(folder.glob('runs/*')))}"
    command = command.replace("unslothrl grpo", "unslothrl train --learner grpo")
    words = re.sub(r"--eval_candidates \d+", "", command).split()[2:]
    few = [word for key, value in FEW.items() for word in (f"--{key}", str(value))]
    assert cli.main([*words, *few, "--run_name", name]) == 0
    run = folder / "runs" / name
    steps = rows(run / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert step["episode/lost"] == 0 and step["episode/turns"] >= 1
        for name in ("tool_calls", "failed_tool_calls", "observed_tokens"):
            assert f"episode/{name}" in step
    episodes = [row for file in sorted(run.glob("rollouts/*.jsonl")) for row in rows(file)]
    assert len(episodes) == 2 * FEW["batch_size"] * FEW["num_candidates"]
    for episode in episodes:
        assert episode["turns"] and episode["finish_reason"] != "lost"
        for turn in episode["turns"]:
            assert turn.keys() >= {"reply", "observation", "reward", "calls", "failed_calls"}
    return episodes


@pytest.mark.slow
@pytest.mark.parametrize("command", environments_page.commands())
def test_a_documented_command_trains(command, folder, monkeypatch):
    episodes = trained(command, folder, monkeypatch)
    if "--recipe calculator-cpu" in command:  # whose adapter has learnt turns
        assert any(len(episode["turns"]) == 2 for episode in episodes)
    for option, shown in (("tools.py", '"multiply"'), ("search:", '"search"')):
        if f"--tools {option}" in command:
            assert all(shown in episode["prompt"] for episode in episodes)


TELLS = """
import json, random
import numpy

class Tells:
    def __init__(self, **options):
        self.options = options

    def reset(self, task, seed):
        draws = [random.random(), float(numpy.random.random())]
        extra = {"id": task.id, "level": task.extra["level"], "messages": task.messages}
        return json.dumps([task.problem, task.answer, extra, seed, draws, self.options])

    async def step(self, action):
        return json.dumps([str(action), action.content, action.reasoning]), 0.5, False

    def close(self):
        with open(__file__ + ".closed", "a") as file:
            file.write("closed")
"""


def test_what_reset_is_given(tmp_path):
    setup = Setup(written(tmp_path, TELLS), "Tells", {"a": [1]})
    prompts = []
    for seed in (5, 5, 2**40):
        played = play_with(setup, Script("x$"), of=asked("Who?"), seed=seed, rules=Rules(1))
        prompts.append(played.completion.transcript.prompt)
    assert prompts[0] == prompts[1] != prompts[2]
    said = prompts[2].split("user\n")[1].split("< |")[0].split("<|im_end|>")[0]
    expected = [random.Random(2**40).random(), numpy.random.RandomState(2**40 % 2**32).random()]
    extra = {"id": "a", "level": 2, "messages": [{"role": "user", "content": "Who?"}]}
    assert json.loads(said) == ["Who?", "7", extra, 2**40, expected, {"a": [1]}]


def test_what_step_is_given_and_returns(tmp_path):
    reply = "<think>Hm.</think>Hello."
    setup = Setup(written(tmp_path, TELLS), "Tells")
    played = play_with(setup, Script(reply + "$", "x$"), most=2000, turn=300, rules=Rules(2))
    first = played.completion.transcript.turns[0]
    assert json.loads(first.observation) == [reply, "Hello.", "Hm."] and first.reward == 0.5


def test_close_is_called_however_an_episode_ends(tmp_path):
    for name, source in (("ends", TELLS), ("fails", TELLS.replace("0.5, False", "1 / 0, False"))):
        file = written(tmp_path, source, f"{name}.py")
        played = play_with(Setup(file, "Tells"), Script("x$", "y$"), most=900, rules=Rules(2))
        assert bool(played.lost) == (name == "fails")
        assert Path(f"{file}.closed").read_text() == "closed"


OWN_TOOLS = (
    tool("def add(a: int, b: int) -> int", "return a + b")
    + """
class Quiz:
    def __init__(self):
        self.tools = [add]

    def reset(self, task, seed): ...

    async def step(self, action):
        return "and?", 1.0, action == "bye"
"""
)
FILE_TOOL = tool("def double(a: int) -> int", "return 2 * a")


def test_tools_answer_calls_and_the_environment_the_rest(tmp_path):
    tools = (written(tmp_path, FILE_TOOL, "tools.py"),)
    setup = Setup(written(tmp_path, OWN_TOOLS), "Quiz", tools=tools, max_calls=2)
    add, double = call("add", a=2, b=3) + "$", call("double", a=4) + "$"
    played = play_with(setup, Script(add, "hm$", double, add, "bye$"), most=5000, turn=300)
    turns = played.completion.transcript.turns
    too_many = "error: no more calls: 2 were made"
    assert [turn.observation for turn in turns] == ["5", "and?", "8", too_many, ""]
    assert [turn.reward for turn in turns] == [0.0, 1.0, 0.0, 0.0, 1.0]


JUDGE = """
def judge(completion, answer):
    assert "you: " not in completion
    return float(len(completion))
"""


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["judge.py:judge", "none"])
def test_rewards_judge_what_the_model_wrote(reward, folder, monkeypatch):
    (folder / "judge.py").write_text(JUDGE)
    (folder / "echo.py").write_text(ECHO)
    command = (
        "unslothrl grpo --environment echo.py:Echo "
        f"--max_new_tokens 20 --max_episode_tokens 60 --reward {reward}"
    )
    for episode in trained(command, folder, monkeypatch):
        rewards = episode["rewards"]
        assert rewards["environment"] == sum(turn["reward"] for turn in episode["turns"])
        wrote = sum(len(turn["reply"]) for turn in episode["turns"])
        assert rewards.keys() == {"environment"} if reward == "none" else rewards["judge"] >= wrote

"""Environment libraries, each installed into a virtual environment of its own, and the environments
of ours that are played with them.

`UNSLOTHRL_SUITES` names a folder in which the virtual environments are kept.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = "UNSLOTHRL_SUITES"
PACKAGES = {
    "gem": "gem-llm==0.1.0",
    "openenv": "openenv==0.10.0",
    "reasoning_gym": "reasoning-gym==0.1.25",
    "textarena": "textarena==0.7.4",
    "verifiers": "verifiers==0.4.0",
}
EXAMPLES = Path(__file__).parents[1] / "examples"
INSTALL_S = 900
DONE = "installed"  # written last: a folder without it was interrupted


def installed(suite: str, folder: Path) -> str:
    """-> the Python of the suite's virtual environment, which is made unless it is there."""
    package, home = PACKAGES[suite], folder / suite
    python, done = home / "bin" / "python", home / DONE
    if done.is_file() and done.read_text() == package:
        return str(python)
    shutil.rmtree(home, ignore_errors=True)
    base = getattr(sys, "_base_executable", sys.executable)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in (
        [base, "-m", "venv", str(home)],
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", package],
    ):
        made = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, env=environment
        )
        if made.returncode:
            pytest.fail(f"{package} cannot be installed: {(made.stderr or made.stdout)[-500:]}")
    done.write_text(package)
    return str(python)


OPENENV_SERVER = '''
"""PYTHON server.py DESCRIPTOR: a game, on a socket that listens already."""

import random
import sys

import uvicorn
from openenv.core.env_server import Environment, create_fastapi_app
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Guess(Action):
    guess: str = Field(max_length=40)


class Said(Observation):
    text: str


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    guesses = secret = most = 0

    def reset(self, seed=None, episode_id=None, low=0, most=0, **options):
        self.secret, self.most = random.Random(seed).randint(low, 99), most
        return Said(text=f"Guess my number, at least {low}.")

    def step(self, action, timeout_s=None, **options):
        self.guesses += 1
        right = action.guess == str(self.secret)
        done = right or self.guesses == self.most
        return Said(text="right" if right else "wrong", done=done, reward=float(right) - 0.25)

    @property
    def state(self):
        return State()


app = create_fastapi_app(Game, Guess, Said, max_concurrent_envs=64)
uvicorn.run(app, fd=int(sys.argv[1]))
'''


@contextlib.contextmanager
def openenv_server(python: str, folder: Path) -> Iterator[str]:
    """-> the address of a server, which is stopped in the end."""
    file = folder / "server.py"
    file.write_text(OPENENV_SERVER)
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, (folder / "server.log").open("w") as log:
        port, descriptor = listening.getsockname()[1], listening.fileno()
        process = subprocess.Popen(
            [python, str(file), str(descriptor)], pass_fds=[descriptor], stdout=log, stderr=log
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


VERIFIERS_PACKAGE = """
import verifiers.v1 as vf

__all__ = ["GuessTaskset", "GuessEnv"]


class GuessData(vf.TaskData):
    secret: int


class GuessTask(vf.Task[GuessData]):
    @vf.reward(weight=0.5)
    async def digits(self, task: GuessData, trace: vf.Trace) -> float:
        said = [message.content for message in trace.assistant_messages]
        return sum(each.isdigit() for each in said) / len(said)


class GuessConfig(vf.TasksetConfig):
    most: int = 9


class GuessTaskset(vf.Taskset[GuessTask, GuessConfig]):
    def load(self):
        for secret in range(self.config.most):
            data = GuessData(prompt="Guess.", system_prompt="Digits only.", secret=secret)
            yield GuessTask(data, self.config.task)


class GuessEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(max_turns=3)


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and segment.last_reply != str(task.data.secret):
                segment = await interaction.turn("Wrong.")
        interaction.trace.record_reward("found", float(not segment.terminated), 1.0)
"""

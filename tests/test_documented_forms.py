"""Environments as RL2's and TRL's documentation has them written, each in one file that runs here
and there: what an episode comes to is worked out by a loop as theirs, or by hand."""

import asyncio
import importlib.util
import json
import random
from dataclasses import replace
from types import ModuleType

import pytest
from environment_files import Script, asked, call, play_with, tokenizer, written
from few_cases import few

from unslothrl.data.formats import Columns, Reader
from unslothrl.data.rendering import Renderer, Skipped
from unslothrl.environments.forms import TrlForm
from unslothrl.environments.host import Setup
from unslothrl.environments.tool_calls import schema

pytestmark = pytest.mark.real

# After "Environments" in RL2's README: texts, a passage appended to the state, one answer.
RL2 = """
import re
from typing import Dict

PASSAGES = {"china": "The capital of China is Beijing.", "france": "Paris is in France."}

async def search_result(query: str) -> str:
    return f"<information>{PASSAGES.get(query.lower(), 'nothing')}</information>"

async def step(state: str, action: str, extra_info: Dict) -> Dict:
    response = {"next_state": None, "reward": 0.0, "score": 0.0, "done": False,
                "extra_info": extra_info}
    found = re.search(r"<(search|answer)>(.*?)</", action)
    if found is None:
        response["next_state"] = state + action + "Search or answer."
        response["reward"] = -0.5
    elif found.group(1) == "search":
        response["next_state"] = state + action + await search_result(found.group(2))
    else:
        right = float(found.group(2) in extra_info["answer"])
        response["reward"] = right * extra_info["weight"]
        response["score"] = right
        response["done"] = True
    return response
"""

# After "Environments" of TRL's GRPO trainer: the environment draws its task and scores itself.
OWNS_DATA = '''
import random

class Increment:
    def reset(self, **kwargs) -> str | None:
        self.counter, self.row = 0, kwargs
        self.target = random.randint(1, 6)
        return f" Increment the counter by {self.target}."

    def increment(self, step: int) -> int:
        """
        Adds to the counter.

        Args:
            step: What is added.

        Returns:
            The new value of the counter.
        """
        if step < 0:
            raise ValueError("step must not be negative")
        self.counter += step
        return self.counter

    async def look(self, what: str = "counter") -> dict:
        """
        Looks at a part of the state.

        Args:
            what: Its name.
        """
        return {what: getattr(self, what)}

    def get_reward(self) -> float:
        return float(self.counter == self.target)
'''


def imported(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("theirs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("replies", "reward", "score"),
    [
        (["Hm", "<search>China</search>", "<answer>Beijing</answer>"], 1.5, 1.0),
        (["<search>Peru</search>", "<answer>Lima</answer>"], 0.0, 0.0),
    ],
)
def test_rl2s_documented_step(replies, reward, score, tmp_path):
    file = written(tmp_path, RL2)
    extra = {"answer": ["Beijing", "Peking"], "weight": 2.0}
    of = replace(asked("What is the capital of China?"), extra={"extra_info": extra})
    said, their_turns, state = [], [], of.prompt
    for reply in replies:  # as RL2 drives it
        answer = asyncio.run(imported(file).step(state, reply, extra))
        their_turns.append((reply, answer["reward"]))
        if not answer["done"]:
            said.append(answer["next_state"].removeprefix(state + reply))
            state, extra = answer["next_state"], answer["extra_info"]
    script = Script(*(reply + "$" for reply in replies))
    played = play_with(Setup(file, "step"), script, of=of)
    assert not played.lost
    assert (played.reward, played.score) == (pytest.approx(reward), score)
    ours = played.completion.transcript.turns
    assert [(turn.reply, turn.reward) for turn in ours] == their_turns
    assert [turn.observation for turn in ours[:-1]] == said
    (only,) = played.completion.sequences(of)  # every state goes on from the one before
    assert only[0] == of.prompt_ids


SHOWS_ROW = """
import json

class Shows:
    def reset(self, {parameters}): return json.dumps({shown}, sort_keys=True)
    def get_reward(self): return 1.0
"""
WORKED, ASKED = "3 + 4 is 7.\n#### 7", [{"role": "user", "content": "3 + 4?"}]


OTHERS = "{k: v for k, v in row.items() if k not in ('prompt', 'answers')}"


@pytest.mark.parametrize(
    ("row", "columns", "parameters", "shown", "said"),
    few([
        ({"question": "3 + 4?", "answer": WORKED, "level": 2}, Columns(), "question, **row",
         f"[question, {OTHERS}]", ["3 + 4?", {"answer": WORKED, "level": 2, "problem": "3 + 4?"}]),
        ({"problem": "A title", "asks": "3 + 4?", "gold": [7, "VII"]}, Columns("asks", "gold"),
         "asks, gold, problem, answer", "[asks, gold, problem, answer]",
         ["3 + 4?", [7, "VII"], "A title", "7"]),
        ({"prompt": ASKED, "answer": 7}, Columns(), "prompt, answer", "[prompt, answer]",
         [ASKED, 7]),
        ], 2),
)  # fmt: skip
def test_reset_gets_the_row_as_the_data_set_has_it(row, columns, parameters, shown, said, tmp_path):
    renderer = Renderer(tokenizer(), "", 1000, reader=Reader(columns))
    (task,) = renderer.tasks("rows", [(1, row)], Skipped())
    file = written(tmp_path, SHOWS_ROW.format(parameters=parameters, shown=shown))
    played = play_with(Setup(file, "Shows"), Script("x$"), of=task, most=2000)
    assert not played.lost
    assert json.dumps(said, sort_keys=True) in played.completion.transcript.prompt


def test_an_environment_in_trls_form_is_played_and_its_tools_shown_as_transformers_does(tmp_path):
    from transformers.utils import get_json_schema

    file = written(tmp_path, OWNS_DATA)
    made = imported(file).Increment()
    methods = [getattr(made, method.__name__) for method in TrlForm.methods(type(made))]
    assert [schema(method) for method in methods] == [get_json_schema(each) for each in methods]
    target = random.Random(5).randint(1, 6)
    script = Script(call("increment", step=target) + call("look") + "$", "done$")
    setup = Setup(file, "Increment")
    played = play_with(setup, script, seed=5, most=4000, turn=400, of=asked("?"))
    prompt = played.completion.transcript.prompt
    assert f"user\n? Increment the counter by {target}." in prompt  # as TRL appends it
    assert all(json.dumps(schema(method)) in prompt for method in methods)
    first, last = played.completion.transcript.turns  # calls, until a turn has none
    assert first.observation == f'{target}\n{{"counter": {target}}}'
    assert (first.calls, last.calls, played.reward) == (2, 0, 1.0)

"""Environments as RL2's and TRL's documentation has them written, each in one file that runs here
and there: what an episode comes to is worked out by a loop of theirs, or in theirs."""

import asyncio
import inspect
import json
import random
import runpy
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from environment_files import Script, asked, call, ids_of, play_with, tokenizer, written
from few_cases import few
from test_trl_rewards import event_loop_thread  # noqa: F401

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


@pytest.mark.parametrize(
    ("replies", "reward", "score", "turns"),
    [
        (["Hm", "<search>China</search>", "<answer>Beijing</answer>"], 1.5, 1.0, 3),
        (["<search>Peru</search>", "<answer>Lima</answer>"], 0.0, 0.0, 2),
        (["<answer>Peking</answer>"], 2.0, 1.0, 1),
    ],
)
def test_rl2s_documented_step(replies, reward, score, turns, tmp_path):
    """The row is RL2's: its `extra_info` is what the function gets."""
    file = written(tmp_path, RL2)
    of = replace(
        asked("What is the capital of China?"),
        extra={"extra_info": {"answer": ["Beijing", "Peking"], "weight": 2.0}},
    )
    said, their_turns, state = [], [], of.prompt
    extra = of.extra["extra_info"]
    for reply in replies:  # as RL2 drives it
        answer = asyncio.run(runpy.run_path(file)["step"](state, reply, extra))
        their_turns.append((reply, answer["reward"]))
        if answer["done"]:
            break
        said.append(answer["next_state"].removeprefix(state + reply))
        state, extra = answer["next_state"], answer["extra_info"]
    played = play_with(Setup(file, "step"), Script(*(reply + "$" for reply in replies)), of=of)
    assert not played.lost
    assert (played.reward, played.score) == (pytest.approx(reward), score)
    ours = played.completion.transcript.turns
    assert [(turn.reply, turn.reward) for turn in ours] == their_turns and len(ours) == turns
    assert [turn.observation for turn in ours[:-1]] == said
    (only,) = played.completion.sequences(of)  # every state goes on from the one before
    assert only[0] == of.prompt_ids


def by_trls_loop(environment, messages: list[dict], replies: Sequence[str], loop) -> list[dict]:
    """The conversation that TRL's own tool loop has with an environment; the model is replaced by
    its replies. `reset` has been called."""
    trainer = pytest.importorskip("trl.trainer.grpo_trainer")
    methods = {
        name: getattr(environment, name)
        for name, _ in inspect.getmembers(type(environment), inspect.isfunction)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    }  # as `_generate_and_score_completions` has it
    is_async = inspect.iscoroutinefunction
    left = list(replies)

    def parsed(text: str) -> dict:
        said = [json.loads(part.split("</")[0]) for part in text.split("<tool_call>")[1:]]
        calls = [{"type": "function", "function": each} for each in said]
        return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})

    stub = SimpleNamespace(
        max_tool_calling_iterations=10, max_completion_length=10_000, use_vllm=False, _is_vlm=False,
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=100_000)),
        tools=list(methods.values()), _tokenizer=None, async_loop=loop,
        _sync_tool_dicts=[{n: m for n, m in methods.items() if not is_async(m)}],
        _async_tool_dicts=[{n: m for n, m in methods.items() if is_async(m)}],
        _get_tool_suffix_ids=lambda messages: [0],
        _generate_single_turn=lambda *a, **k: ([list(ids_of(left[0]))], [[0.0]]),
    )  # fmt: skip
    completions = [[parsed(left.pop(0))]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "parse_response", lambda *a, **k: parsed(left.pop(0)))
        trainer.GRPOTrainer._tool_call_loop(
            stub, [list(messages)], [[1]], [[2]], completions, None, None, {}
        )
    return completions[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_trls_documented_environment(seed, tmp_path, event_loop_thread):  # noqa: F811
    """The same class in TRL's tool loop and here, from one seed."""
    file = written(tmp_path, OWNS_DATA)
    target = random.Random(seed).randint(1, 6)
    replies = [call("increment", step=target - 1) + call("look"), call("increment", step=1), "done"]
    theirs = runpy.run_path(file)["Increment"]()
    messages = [{"role": "user", "content": "Count."}]
    random.seed(seed)
    more = theirs.reset(prompt=messages, level=2)
    messages[-1] = {**messages[-1], "content": messages[-1]["content"] + more}  # as TRL appends it
    conversation = by_trls_loop(theirs, messages, replies, event_loop_thread)
    script = Script(*(reply + "$" for reply in replies))
    played = play_with(
        Setup(file, "Increment"), script, of=asked("Count."), seed=seed, most=4000, turn=400
    )
    assert not played.lost and theirs.target == target
    assert played.reward == theirs.get_reward() == 1.0
    assert messages[0]["content"] in played.completion.transcript.prompt
    results = [each["content"] for each in conversation if each["role"] == "tool"]
    assert results == [str(target - 1), str({"counter": target - 1}), str(target)]
    turns = played.completion.transcript.turns
    ours = [line for turn in turns for line in turn.observation.splitlines()]
    assert ours == [results[0], json.dumps({"counter": target - 1}), results[2]]


SHOWS_ROW = """
import json

class Shows:
    def reset(self, {parameters}):
        return json.dumps({shown}, sort_keys=True)

    def get_reward(self):
        return 1.0
"""
WORKED = "3 + 4 is 7.\n#### 7"


@pytest.mark.parametrize(
    ("row", "columns", "parameters", "shown", "said"),
    few([
        ({"question": "3 + 4?", "answer": WORKED, "level": 2}, Columns(), "question, **row",
         "[question, row]", ["3 + 4?", {"answer": WORKED, "level": 2, "problem": "3 + 4?"}]),
        ({"problem": "A title", "asks": "3 + 4?", "gold": [7, "VII"]}, Columns("asks", "gold"),
         "asks, gold, problem, answer", "[asks, gold, problem, answer]",
         ["3 + 4?", [7, "VII"], "A title", "7"]),
        ({"prompt": [{"role": "user", "content": "3 + 4?"}], "answer": 7}, Columns(),
         "prompt, answer", "answer", 7),
        ], 2),
)  # fmt: skip
def test_reset_gets_the_row_as_the_data_set_has_it(row, columns, parameters, shown, said, tmp_path):
    """Every column as TRL gives it, and the prompt as messages."""
    renderer = Renderer(tokenizer(), "", 1000, reader=Reader(columns))
    (task,) = renderer.tasks("rows", [(1, row)], Skipped())
    shown = f"[prompt, {shown}]" if "prompt, " in parameters else shown
    if "**row" in parameters:
        shown = shown.replace("row", "{k: row[k] for k in row if k not in ('prompt', 'answers')}")
    file = written(tmp_path, SHOWS_ROW.format(parameters=parameters, shown=shown))
    played = play_with(Setup(file, "Shows"), Script("x$"), of=task, most=2000)
    assert not played.lost
    expected = [row["prompt"], said] if "prompt, " in parameters else said
    assert json.dumps(expected, sort_keys=True) in played.completion.transcript.prompt


def test_an_environment_in_trls_form_is_played_and_its_tools_shown_as_transformers_does(tmp_path):
    from transformers.utils import get_json_schema

    file = written(tmp_path, OWNS_DATA)
    made = runpy.run_path(file)["Increment"]()
    methods = [getattr(made, method.__name__) for method in TrlForm.methods(type(made))]
    assert [schema(method) for method in methods] == [get_json_schema(each) for each in methods]
    target = random.Random(5).randint(1, 6)
    script = Script(call("increment", step=target) + call("look") + "$", "done$")
    played = play_with(Setup(file, "Increment"), script, most=4000, turn=400, of=asked("?"), seed=5)
    for method in methods:
        assert json.dumps(schema(method)) in played.completion.transcript.prompt
    first, last = played.completion.transcript.turns  # calls, until a turn has none
    assert first.observation == f'{target}\n{{"counter": {target}}}'
    assert (first.calls, last.calls, played.reward) == (2, 0, 1.0)

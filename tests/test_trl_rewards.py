"""Reward functions written for TRL: one file through TRL's own calling code and through ours."""

import ast
import asyncio
import contextlib
import functools
import importlib.util
import inspect
import json
import logging
import runpy
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fakes import completion

from unslothrl import rewards
from unslothrl.commands import cli
from unslothrl.records import Task
from unslothrl.rewards.scorer import Scorer

pytestmark = pytest.mark.real

FILE = """
import asyncio, functools
import numpy as np

def length(completions, **kwargs):  # plain text
    return [float(len(completion)) for completion in completions]

def accuracy(prompts, completions, answer, **kwargs):
    assert all("?" in prompt for prompt in prompts)
    return [1.0 if text.endswith(gold) else 0.0 for text, gold in zip(completions, answer)]

def columns(completions, level, **kwargs):
    tags = kwargs["tags"]
    return [float(n) + len(tag) + len(text) for n, tag, text in zip(level, tags, completions)]

def said(prompts, completions, answer, **kwargs):  # messages
    responses = [completion[0]["content"] for completion in completions]
    assert all(prompt[-1]["role"] == "user" and "?" in prompt[-1]["content"] for prompt in prompts)
    return [2.0 if r.endswith(a) else 0.0 for r, a in zip(responses, answer)]


def roles(completions: list[list[dict[str, str]]], **kwargs):
    return [float(len(c) + (c[0]["role"] == "assistant")) for c in completions]

def text_of(message):
    return message["content"]

def by_a_helper(completions, **kwargs):
    return [float(len(text_of(c[0]))) for c in completions]

def either(completions, answer, **kwargs):
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(len(text)) for text in texts]

def token_counts(completions, completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def some(prompts, completions, level, **kwargs):  # judges the rows that are its own
    return [float(len(c)) if n > 1 else None for c, n in zip(completions, level)]

def none(completions, **kwargs):
    return [None] * len(completions)

async def judge(prompts, completions, answer, **kwargs):
    async def one(text, gold):
        await asyncio.sleep(0)
        return 1.0 if gold in text else -1.0
    return await asyncio.gather(*map(one, completions, answer))

def logs(completions, log_extra=None, log_metric=None, **kwargs):
    log_extra("length", [len(c) for c in completions])
    log_metric("mean", 0.5)
    return [1.0] * len(completions)


def by_ids(completion_ids, **kwargs):  # the first example of TRL's documentation
    return [float(len(ids)) for ids in completion_ids]

def by_prompts(prompts, **kwargs):
    return [float(len(prompt)) for prompt in prompts]

def by_keywords(**kwargs):
    return [float(len(c) + len(i)) for c, i in zip(kwargs["completions"], kwargs["completion_ids"])]

def progress(completions, trainer_state, **kwargs):
    return [trainer_state.global_step / trainer_state.max_steps] * len(completions)

def keyword_only(*, completions, level, **kwargs):
    return [float(n) for n in level]

def _scaled(completions, by, **kwargs):
    return [by * len(c) for c in completions]

partial = functools.partial(_scaled, by=0.5)

class Counted:
    def __call__(self, completions, completion_ids, answer, **kwargs):
        return [float(len(c) + len(i) + len(a))
                for c, i, a in zip(completions, completion_ids, answer)]

counted = Counted()

def arrays(completions, **kwargs):
    return np.array([len(c) for c in completions], dtype=np.float32)
"""
PLAIN = ("length", "either", "accuracy", "columns", "token_counts", "some", "none", "judge", "logs",
         "arrays", "by_ids", "by_prompts", "by_keywords", "progress", "keyword_only", "partial",
         "counted")  # fmt: skip
MESSAGES = ("said", "by_a_helper", "either", "roles", "none", "by_prompts")
ROWS = [
    {"prompt": "What is 3 + 4?", "answer": "7", "level": 1, "tags": "easy"},
    {"prompt": "What is 30 + 4?", "answer": "34", "level": 2, "tags": "harder"},
    {"prompt": "What is 1 + 1?", "answer": "2", "level": 3, "tags": "x"},
]
TEXTS = ["<think>3 + 4</think> 7", "it is 33", "2"]
IDS = [(5, 6, 7), (8,), (9, 2)]


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path / "mine.py"


@pytest.fixture(scope="module")
def event_loop_thread():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def calling_code():
    """The text of TRL's method that calls reward functions, with what it takes from elsewhere:
    importing its class takes half a minute."""
    (folder,) = importlib.util.find_spec("trl").submodule_search_locations
    names = {each.__name__: each for each in (torch, asyncio, inspect, functools, Callable)}
    names |= {"nn": torch.nn, "logger": logging.getLogger("trl")}
    names["profiling_context"] = lambda trainer, name: contextlib.nullcontext()
    names["gather"] = lambda tensor: tensor  # one process
    for module, name in (("utils", "is_async_callable"), ("grpo_trainer", "_calculate_rewards")):
        tree = ast.parse(Path(folder, "trainer", f"{module}.py").read_text())
        (found,) = [node for node in ast.walk(tree) if getattr(node, "name", "") == name]
        found.decorator_list = []
        exec(ast.unparse(found), names)
    return names["_calculate_rewards"]


def prompt_of(row, is_conversational):
    return [{"role": "user", "content": row["prompt"]}] if is_conversational else row["prompt"]


def by_trl(file, names, is_conversational, loop):
    """-> by TRL's trainer: the rewards of each function; None where it gave none."""
    functions = runpy.run_path(file)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(device="cpu", is_main_process=True),
        args=SimpleNamespace(report_to=[]),
        state=SimpleNamespace(global_step=3, max_steps=4),
        reward_funcs=[functions[name] for name in names],
        reward_processing_classes=[None] * len(names),
        reward_func_names=list(names),
        environments=None,
        async_loop=loop,
        _log_completion_extra=lambda column, values: None,
        _log_metric=lambda name, value: None,
    )
    prompts = [prompt_of(row, is_conversational) for row in ROWS]
    completions = TEXTS
    if is_conversational:
        completions = [[{"role": "assistant", "content": text}] for text in TEXTS]
    inputs = [{**row, "prompt": prompt} for row, prompt in zip(ROWS, prompts, strict=True)]
    found = calling_code()(trainer, inputs, prompts, completions, list(map(list, IDS)))
    return {
        name: [None if value != value else value for value in found[:, i].tolist()]
        for i, name in enumerate(names)
    }


def by_us(file, names, is_conversational):
    chosen = rewards.choose(tuple(f"{file}:{name}" for name in names))
    completed = []
    for row, text, ids in zip(ROWS, TEXTS, IDS, strict=True):
        extra = {name: row[name] for name in ("level", "tags")}
        turns = (("user", row["prompt"]),)
        read = {"prompt": prompt_of(row, is_conversational), "answer": row["answer"]}
        rendered = f"<user>{row['prompt']}"
        task = Task("0", row["prompt"], row["answer"], rendered, (1,), extra, turns, read)
        completed.append((task, replace(completion(len(ids), 3, text), token_ids=ids)))
    with contextlib.closing(Scorer(chosen, deadline_s=30, steps=4)) as scorer:
        found = scorer.score(completed)
    assert found.failures == []
    return found.rewards


@pytest.mark.parametrize(("names", "is_conversational"), [(PLAIN, False), (MESSAGES, True)])
def test_both_give_the_same_rewards(names, is_conversational, file, event_loop_thread):
    theirs = by_trl(file, names, is_conversational, event_loop_thread)
    assert (theirs["none"] == [None] * 3 and "some" not in theirs) or theirs["some"][0] is None
    expected = {name: [value or 0.0 for value in values] for name, values in theirs.items()}
    assert by_us(file, names, is_conversational) == expected
    if is_conversational:  # which one says so of plain data reads the same there
        said = [name for name in names if name not in ("roles", "by_prompts")]
        assert by_us(file, said, False) == {name: expected[name] for name in said}


def test_what_a_reward_prints_is_seen_in_score(tmp_path, capfd):
    (tmp_path / "mine.py").write_text(
        "import sys\ndef f(completion, answer):\n    print('gold', answer, 'text', completion)\n"
        "    print('on stderr', file=sys.stderr)\n    return 1\n"
    )
    row = {"problem": "p", "answer": "7", "completion": "seven"}
    (tmp_path / "made.jsonl").write_text(json.dumps(row))
    command = ["score", str(tmp_path / "made.jsonl"), "--reward", f"{tmp_path}/mine.py:f"]
    assert cli.main(command) == 0
    out, err = capfd.readouterr()
    assert "gold 7 text seven\n" in err and "on stderr\n" in err
    assert json.loads(out)["score"] == 1.0

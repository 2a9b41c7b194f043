"""Environments that break in every way: each costs its own episode, which is counted, and leaves
no process."""

import contextlib
import json
import os
import uuid
from pathlib import Path

import psutil
import pytest
from environment_files import BROKEN, END, HARMLESS, LOST, asked, tokenizer, written
from fakes import FakeEngine, draw_groups
from few_cases import few

from unslothrl.actors.actor import Actor
from unslothrl.commands import cli
from unslothrl.environments.host import Host, Setup
from unslothrl.errors import UserError
from unslothrl.records import FROM_THE_ENVIRONMENT, Group, Sampling
from unslothrl.weights.adapter import Adapter

pytestmark = pytest.mark.real

CANDIDATES = 4


@pytest.fixture
def nothing_is_left(monkeypatch):
    """Of all that the test has started, however it has detached itself."""
    mark = str(uuid.uuid4())
    monkeypatch.setenv("STARTED_BY", mark)
    yield
    every = psutil.process_iter(["environ"])  # None where it may not be read
    left = [each for each in every if (each.info["environ"] or {}).get("STARTED_BY") == mark]
    _, left = psutil.wait_procs(left, timeout=5)
    assert not left


ALWAYS = """class E:
    def reset(self, task):
        raise ValueError("no")
    def step(self, action): ...
"""


@contextlib.contextmanager
def acting(folder: Path, how: str, **limits):
    """An actor whose every turn is its end."""
    setup = Setup(written(folder, BROKEN), "Broken", {"folder": str(folder), "how": how}, **limits)
    actor = Actor("actor-0", FakeEngine(), tokenizer(), environment=setup)
    with contextlib.closing(actor):
        actor.load(Adapter.of(1, str(END).encode(), "{}"))
        yield actor


def drawn(folder: Path, how: str) -> Group:
    with acting(folder, how, deadline_s=1.0, memory_mb=200) as actor:
        sampling = Sampling(1.0, 1.0, 0, 30, 200)
        (group,) = draw_groups(actor, [asked("1+1?")], CANDIDATES, sampling, (0,))
    return group


def flags_of(folder: Path, environment: str, more: str) -> list[str]:
    """Of a small run."""
    return (
        f"--learner grpo --model embedded --dataset embedded --cluster local --engine transformers "
        f"--number_of_actors 0 --max_steps 3 --eval_every 0 --environment {environment} "
        f"--output_dir {folder} --run_name x {more}"
    ).split()


OFTEN = [
    "raises at step", "hangs at reset", "loops for ever", "no reward", "a turn of the policy",
    "grows", "says too much", "kills itself", "closes everything",
]  # fmt: skip


@pytest.mark.parametrize("how", few(LOST, among=OFTEN))
def test_what_breaks_loses_its_own_episode(how, tmp_path, nothing_is_left):
    group = drawn(tmp_path, how)
    assert (tmp_path / how).exists()
    (failure,) = [each for each in group.failures if each.reward == FROM_THE_ENVIRONMENT]
    assert LOST[how] in failure.reason and "\n" not in str(failure)
    assert [each.is_lost for each in group.completions].count(True) == 1
    assert group.completions[failure.candidate].is_lost
    assert len(group.rated) == CANDIDATES - 1
    assert group.rewards[FROM_THE_ENVIRONMENT][failure.candidate] == 0.0


@pytest.mark.parametrize(
    "how", few(HARMLESS, among=["leaks processes", "prints", "special tokens", "never ends"])
)
def test_what_is_only_strange_loses_nothing(how, tmp_path, nothing_is_left, capfd):
    group = drawn(tmp_path, how)
    assert (tmp_path / how).exists() and not group.failures
    assert len(group.rated) == CANDIDATES
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_run_with_all_of_them_ends_well(tmp_path, capsys, nothing_is_left):
    """The lost episodes are in the record, with turns and reasons; nothing is trained on them."""
    folder = tmp_path / "broken"
    folder.mkdir()
    how = ",".join(name for name in (*LOST, *HARMLESS) if name != "another prompt")
    more = (
        "--batch_size 6 --num_candidates 8 --topk 8 --max_new_tokens 24 --max_episode_tokens 120 "
        "--environment_timeout 3 --environment_memory_mb 200"
    )
    flags = flags_of(tmp_path, f"{written(tmp_path, BROKEN)}:Broken", more)
    options = [f"--environment_options=folder={folder}", f"--environment_options=how={how}"]
    assert cli.main(["train", *flags, *options]) == 0
    said = capsys.readouterr().out
    assert "an episode is lost: its environment failed: ZeroDivisionError" in said
    assert {path.name for path in folder.iterdir()} == set(how.split(","))
    metrics = [json.loads(line) for line in (tmp_path / "x" / "metrics.jsonl").open()]
    assert sum(row["episode/lost"] for row in metrics) == len(LOST) - 1
    files = sorted((tmp_path / "x" / "rollouts").glob("*.jsonl"))
    rows = [json.loads(line) for path in files for line in path.open()]
    lost = [row for row in rows if row["finish_reason"] == "lost"]
    assert len(lost) == len(LOST) - 1
    assert not any(row["selected"] or row["advantage"] for row in lost)
    assert all(len(row["turns"]) <= 3 for row in rows)
    assert all(row["lost"] for row in lost) and sum("lost" in row for row in rows) == len(lost)


def test_an_environment_that_always_fails_ends_the_run(tmp_path, capsys):
    """Where it does so in the first episode that is made up, no model is loaded; else the run ends
    with nothing that a resume would only repeat."""
    file = written(tmp_path, ALWAYS)
    flags = flags_of(tmp_path, f"{file}:E", "--batch_size 2 --num_candidates 2 --topk 2")
    assert cli.main(["train", *flags]) == 2
    said = capsys.readouterr()
    assert "fails in a made-up episode: ValueError: no (mine.py line 3): fix it" in said.err
    assert "loading" not in said.out and not (tmp_path / "x").exists()
    Path(file).write_text(ALWAYS.replace("(self, task):", "(self, task, seed):").replace(
        'raise ValueError("no")', 'if seed: raise ValueError("no")'
    ).replace("...", "return {'done': True}"))  # fmt: skip
    assert cli.main(["train", *flags]) == 1
    said = capsys.readouterr()
    assert "resume" not in said.out
    assert "the environment failed in 4 of 4 episodes (ValueError: no (mine.py line 3))" in (
        said.err + said.out
    )


DOCUMENTED = '"""\n    A tool.\n\n    Args:\n        a: One.\n        b: Two.\n    """'


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def helper(x): return x", "helper has no schema (Cannot generate JSON schema for helper "
         "because it has no docstring)"),
        (f"def g(a, b: int):\n    {DOCUMENTED}", "g has no schema (Argument a is missing a type"),
        (f"def g(a: 'Nothing', b: int):\n    {DOCUMENTED}", "g has no schema (name 'Nothing'"),
    ],
)  # fmt: skip
def test_what_is_no_tool_is_refused_in_a_line(source, why, tmp_path):
    with pytest.raises(UserError) as refused:
        Host(Setup(tools=(written(tmp_path, source),))).start()
    said = str(refused.value)
    assert f"the tool {why}" in said and "\n" not in said and "chat_template" not in said


@pytest.mark.slow
def test_ten_thousand_episodes_leave_nothing(tmp_path, nothing_is_left):
    """Neither memory nor descriptors nor processes, in the actor or in the host."""
    this, seen = psutil.Process(), []
    with acting(tmp_path, "", deadline_s=30.0) as actor:
        for part in range(20):
            draw_groups(actor, [asked("1+1?")] * 125, 4, Sampling(1.0, 1.0, 0, 10, 60), (part,))
            host = psutil.Process(actor.host.process.pid)
            _, left = psutil.wait_procs(host.children(recursive=True), timeout=5)  # those that end
            memory = this.memory_info().rss >> 20, host.memory_info().rss >> 20
            descriptors = [len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", host.pid)]
            seen.append((*memory, *descriptors, len(left)))
    begin, end = seen[4], seen[-1]
    assert end[0] - begin[0] < 10 and end[1] - begin[1] < 2, seen
    assert end[2:] == begin[2:] and end[4] == 0, seen

"""The benches over simulated engines and learners: what they make of runs, by hand; and that each
runs, briefly."""

import asyncio
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fakes import task

BENCH = Path(__file__).parents[1] / "bench"
sys.path.append(str(BENCH))

import failures
import overlap
import overlap_real
import scale
from simulated.learner import LearnerDelays
from simulated.many import GroupActor, ManyActors, SharedHost

from unslothrl import embedded
from unslothrl.policy_version import Adapter
from unslothrl.types import Assignment, Sampling
from unslothrl.weights.base_model import load_tokenizer

SAMPLING = Sampling(1.0, 1.0, 0, 100)


def test_overlaps_gain():
    here = {"largest staleness": 1, "seconds a step, median": 2.1, "lengths": [200] * 50}
    runs = {
        "equal, staleness 0": {**here, "trained tokens a second": 100.0},
        "equal, staleness 1": {**here, "trained tokens a second": 195.0},
        "generation half of the update, staleness 1": here,  # without a synchronous run
    }
    summary = overlap.summary(runs)
    assert summary.keys() == {"equal, staleness 1"}
    assert summary["equal, staleness 1"]["over synchronous"] == 1.95
    assert summary["equal, staleness 1"]["median step over max(generation, update)"] == 1.05
    assert summary["equal, staleness 1"]["lengths trained on against synchronous"] == {
        "largest distance": 0,
        "allowed": 0.3898,  # 1.949 * sqrt(100 / 2500)
        "one distribution": True,
    }


def test_short_lengths_are_another_distribution():
    whole = list(range(1, 1001))
    found = overlap.distance([n for n in whole if n <= 700], whole)
    assert found["largest distance"] == 0.3 and not found["one distribution"]


def of_run(seconds: float, speed: float, once: int = 80, kills=(), twice: int = 0) -> dict:
    return {
        "seconds": seconds,
        "trained tokens a second": speed,
        "killed": list(kills),
        "of the first prompts, completions consumed 0, 1, more times": [80 - once, once, 0],
        "consumed more than once": twice,
    }


def test_failures_cost():
    kills = [{"step": n, "actor": "actor-0", "was dead": n == 3} for n in (2, 3, 5)]
    quiet = of_run(100.0, 1000.0)
    found = failures.summary(
        {"quiet, staleness 1": quiet, "killed, staleness 1": of_run(106.0, 943.4, kills=kills)}
    )
    assert found == {
        "staleness 1": {
            "killed over quiet": 0.943,
            "failures": 2,
            "seconds lost per failure": 3.0,
            "every prompt once": True,
        }
    }
    for worse in (of_run(106.0, 943.4, once=79), of_run(106.0, 943.4, twice=1)):
        found = failures.summary({"quiet, staleness 0": quiet, "killed, staleness 0": worse})
        assert not found["staleness 0"]["every prompt once"]


def test_the_newest_process_of_an_actor_is_killed(tmp_path):
    process = subprocess.Popen(["sleep", "600"])
    old, new = tmp_path / "actor-0.1", tmp_path / f"actor-0.{process.pid}"
    for number, file in enumerate((old, new)):
        file.touch()
        os.utime(file, ns=(number, number))
    killer = failures.Killer(tmp_path, frozenset({4}), step_s=0.0)
    killer.after(2)
    assert killer.timers == []  # step 3 is none of those
    killer.after(3)
    killer.wait()
    assert process.wait() == -9
    killer.kill(5)
    assert [kill["was dead"] for kill in killer.killed] == [False, True]


def test_the_scaling_table_follows_from_its_constants():
    runs = [
        {
            "actors": actors,
            "groups a second": rate,
            "share of one core": {"driver": 0.02 + 0.0001 * actors + 0.002 * rate},
        }
        for actors, rate in ((1, 0.4), (8, 3.0), (64, 25.0), (64, 100.0), (512, 200.0))
    ]
    size = {
        "a prompt": 1_000,
        "a group": 100_000,
        "a group's samples": 59_000,
        "a group's part of an update's answer": 40_000,
        "the adapter": 10**7,
    }
    table = scale.table(runs, size)
    assert list(table["constants"].values()) == pytest.approx([0.02, 0.0001, 0.002])
    last = table["rows"][-1]
    assert last["actors"] == 512 and last["groups a second"] == 200
    assert last["driver, share of one core"] == pytest.approx(0.02 + 0.0512 + 0.4, abs=1e-3)
    assert last["as measured"] == pytest.approx(0.4712) and table["rows"][1]["as measured"] is None
    assert table["rows"][6]["as measured"] == pytest.approx(0.02 + 0.0064 + 0.05)  # not at 100/s
    assert last["MB a step"] == pytest.approx(1024 * 0.2 + 10, abs=0.1)
    # 0.98 / (0.0001 + 0.002 / 2.56)
    assert table["the driver saturates at"]["actors"] == 1112


def test_a_fit_has_no_cost_below_zero():
    rows = np.array([[1.0, 1, 1], [1, 2, 4], [1, 3, 9]])
    assert scale.fitted(rows, np.array([1.0, 0.9, 0.8])) == pytest.approx([0.9, 0, 0])


@pytest.fixture
def actor():
    simulation = ManyActors(0.0, 2, 5, 9, LearnerDelays(0.0), adapter_bytes=10)
    return GroupActor("actor-3", simulation)


def assignment(index: int) -> Assignment:
    return Assignment(index, task(str(index)), 4, SAMPLING, (0, 1))


def test_a_group_actor_hands_over_what_was_submitted_once(actor):
    actor.load(Adapter.of(7, b"", "{}"))
    actor.submit([assignment(0), assignment(1)])
    first = actor.collect(least=1, assignments=[assignment(1)])  # a driver may repeat itself
    assert [index for index, _ in first.groups] == [0, 1]  # all that are complete
    actor.submit([assignment(2), assignment(3), assignment(4)])
    actor.abandon([3])
    rest = actor.collect()
    assert sorted(index for index, _ in rest.groups) == [2, 4]
    assert actor.collect().groups == ()
    for index, group in (*first.groups, *rest.groups):
        assert group.task.id == str(index) and set(group.totals) == {0.0, 1.0}
        for completion in group.completions:
            assert 5 <= len(completion.token_ids) == len(completion.logprobs) <= 9
            assert completion.policy_version == 7 and completion.generator == "actor-3"
        assert len({tuple(completion.token_ids) for completion in group.completions}) == 4


def test_a_group_actor_waits_no_longer_than_it_is_asked_to(actor):
    slow = ManyActors(1e6, 2, 5, 9, LearnerDelays(0.0), adapter_bytes=10)
    waits = GroupActor("actor-0", slow)
    waits.submit([assignment(0)])
    assert waits.collect(seconds=0.0).groups == ()
    waits.abandon()
    assert waits.collect().groups == ()


def test_calls_of_an_actor_in_a_shared_process_keep_their_order():
    class Names(list):
        def submit(self, name):
            self.append(name)

    async def call_backwards() -> list[int]:
        host = SharedHost()
        await host.build("actor-0", Names)
        asked = {number: pickle.dumps(("submit", (number,))) for number in (2, 1, 0)}
        calls = [host.call(f"actor-0 {number}", call) for number, call in asked.items()]
        await asyncio.gather(*calls)
        return host.targets["actor-0"]

    assert asyncio.run(call_backwards()) == [0, 1, 2]


def test_actors_of_a_shared_process_collect_side_by_side():
    async def collect() -> list[int]:
        host = SharedHost()
        slow = ManyActors(1e6, 2, 5, 9, LearnerDelays(0.0), adapter_bytes=10)
        fast = ManyActors(0.0, 2, 5, 9, LearnerDelays(0.0), adapter_bytes=10)
        await host.build("slow", GroupActor, "slow", slow)
        await host.build("fast", GroupActor, "fast", fast)
        for name in ("slow", "fast"):
            await host.call(f"{name} 0", pickle.dumps(("submit", ([assignment(5)],))))
        waits = asyncio.create_task(host.call("slow 1", pickle.dumps(("collect", (1, None)))))
        collected = await host.call("fast 1", "collect", 1, None)
        waits.cancel()
        return [index for index, _ in collected.groups]

    assert asyncio.run(collect()) == [5]


def test_the_real_runs_are_compared_with_both_synchronous_ones():
    speeds = {"speed, staleness 0": 10.0, "speed, staleness 1": 16.0, overlap_real.BOTH: 12.5}
    runs = {name: {"trained tokens a second": speed} for name, speed in speeds.items()}
    runs |= {
        f"reward, staleness 1, seed {seed}": {"pass@1 by step": [[0, 0.5], [24, 0.9 + seed / 100]]}
        for seed in (0, 1, 2)
    }
    found = overlap_real.summary(runs)
    assert found["gain"] == {
        "over speed, staleness 0": {"speed, staleness 1": 1.6},
        f"over {overlap_real.BOTH}": {"speed, staleness 1": 1.28},
    }
    assert found["last pass@1, by seed"] == {"staleness 1": [0.9, 0.91, 0.92]}


@pytest.mark.real
def test_a_completions_tokens_are_counted_as_the_engine_drew_them():
    tokenizer = load_tokenizer(embedded.BASE)
    text = "<think>1+2=3</think>"
    tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert tokens == 7  # a tag is one
    assert overlap_real.length({"completion": text, "finish_reason": "stop"}, tokenizer) == 8
    assert overlap_real.length({"completion": text, "finish_reason": "length"}, tokenizer) == 7


@pytest.mark.real
@pytest.mark.parametrize(
    "command",
    [
        ("overlap.py", "--simulated", "--only", "equal, staleness 1"),
        pytest.param(("failures.py", "--only", "killed, staleness 1"), marks=pytest.mark.slow),
        pytest.param(("scale.py", "--only", "8 actors"), marks=pytest.mark.slow),
        pytest.param(
            ("overlap_real.py", "--only", "reward, staleness 1, seed 0"), marks=pytest.mark.slow
        ),
    ],
    ids=lambda command: command[0],
)
def test_each_bench_runs(command, tmp_path):
    done = subprocess.run(
        [sys.executable, str(BENCH / command[0]), "--rehearse", "--output", str(tmp_path),
         *command[1:]],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)

"""Versions in flight in the real engines: what is drawn under which, and that nothing of them is
left. The engines' contract has the rest (`engine_contract.py`)."""

import gc
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from engine_contract import add, drain, held_by, requests, steps
from few_cases import few

from unslothrl.engines.base import Engine, generate
from unslothrl.engines.transformers import TransformersEngine
from unslothrl.engines.vllm import VllmEngine
from unslothrl.records import Completion, Request, Sample, Sampling, seed_of
from unslothrl.weights.adapter import Adapter

pytestmark = pytest.mark.real


@pytest.fixture(params=few(["vllm", "transformers"]))
def engine(request, bases, make_backend):
    if request.param == "vllm":
        return request.getfixturevalue("vllm_engine")
    own = make_backend(bases["biases"], trained=False, seed=3)
    return TransformersEngine(own, bases["biases"], max_num_seqs=64, has_own_base=True)


@pytest.fixture(scope="module")
def adapters(bases, make_backend) -> list[Adapter]:
    """Three policies whose log-probabilities are far apart, as versions 0, 1 and 2."""
    return [make_backend(bases["biases"], seed=10 + i).publish(i) for i in range(3)]


def drawn_with_loads(
    engine: Engine, asked: list[Request], loads: Iterator[Adapter], every: int
) -> dict[str, Completion]:
    """All at once, with a load before every so many steps."""
    add(engine, asked)
    found: dict[str, Completion] = {}
    while not engine.is_finished():
        engine.load(next(loads))
        found |= {id: one.completion for id, one in steps(engine, every).items()}
    return found


def test_each_token_has_the_log_probability_of_its_version(engine, backend, adapters):
    """100 completions, most of them interrupted several times: the learner, which computes the
    whole prefix under a token's version, agrees as much as where nothing was interrupted."""
    engine.load(adapters[2])
    asked = [replace(one, follows_newest=True) for one in requests(100, 5)]
    drawn = drawn_with_loads(engine, asked, itertools.cycle(adapters), every=5)
    assert drawn.keys() == {request.id for request in asked}
    interrupted = [c for c in drawn.values() if len(set(c.versions)) > 1]
    assert len(interrupted) > 60 and any(len(set(c.versions)) == 3 for c in interrupted)
    gaps, other = [], []
    for adapter in adapters:
        backend.restore_adapter(adapter)
        learner = teacher_forced(backend, asked, drawn)
        for request in asked:
            completion = drawn[request.id]
            own = np.array(completion.versions) == adapter.version
            gap = np.abs(learner[request.id] - np.array(completion.logprobs))
            gaps += gap[own].tolist()
            other += gap[~own].tolist()
    assert len(gaps) == sum(len(c.token_ids) for c in drawn.values())
    assert np.mean(gaps) < 0.01 and np.quantile(gaps, 0.999) < 0.1
    assert np.mean(other) > 0.1  # the versions can be told apart


def teacher_forced(backend, asked, drawn) -> dict[str, np.ndarray]:
    """[tokens] log-probabilities of each completion, by its request's id."""
    found = {}
    for begin in range(0, len(asked), 50):
        part = asked[begin : begin + 50]
        samples = [Sample.of(r.prompt_ids, drawn[r.id]) for r in part]
        with torch.no_grad():
            logprobs, _ = backend.token_logprobs(samples, 1.0)
        parts = np.split(logprobs.numpy(), np.cumsum([s.tokens for s in samples])[:-1])
        found |= {r.id: values for r, values in zip(part, parts, strict=True)}
    return found


@pytest.mark.slow
def test_an_interruption_changes_no_distribution(engine, adapters):
    """The same weights come again and again as new versions. Completions of four tokens out of the
    two likeliest each: 16 cells whose probabilities the log-probabilities give."""
    sampling = Sampling(temperature=1.5, top_p=1.0, top_k=2, max_new_tokens=4)
    same = (replace(adapters[0], version=version) for version in itertools.count(1))
    seen: list[Completion] = []
    prompt = requests(1, 8)[0].prompt_ids
    for batch in range(20):
        seeds = (seed_of("batch", batch, i) for i in range(64))
        asked = [Request(str(i), prompt, s, sampling, True) for i, s in enumerate(seeds)]
        seen += drawn_with_loads(engine, asked, same, every=1 + batch % 3).values()
    cells = Counter(tuple(one.token_ids) for one in seen)
    likely: dict[tuple[int, ...], float] = {}
    for one in seen:
        likely.setdefault(tuple(one.token_ids), math.exp(sum(one.logprobs)))
    assert 8 <= len(cells) <= 16 and sum(likely.values()) == pytest.approx(1.0, abs=0.1)
    drawn = len(seen)
    statistic = sum((cells[ids] - drawn * p) ** 2 / (drawn * p) for ids, p in likely.items())
    assert statistic < 45  # of 15 degrees of freedom: 37.7 in 1 of 1,000; and 16-bit rounding


def test_more_versions_than_slots_wait_and_all_end(engine, adapters):
    """Seven versions with five requests each. vLLM has slots for three; transformers begins no
    chunk for fewer requests than run. The others wait, and begin under a version that comes
    meanwhile."""
    added: dict[str, int] = {}
    for version in range(7):
        engine.load(replace(adapters[version % 3], version=version))
        asked = requests(5, version, name=f"v{version}-")
        add(engine, asked)
        added |= dict.fromkeys((request.id for request in asked), version)
        engine.step()
    begun = [0, 1, 2, 6] if isinstance(engine, VllmEngine) else [0, 1, 3, 6]
    assert held_by(engine) == len(begun)
    late = {id: one.completion for id, one in drain(engine).items()}
    assert len(late) >= 30
    for id, completion in late.items():
        assert set(completion.versions) == {min(n for n in begun if n >= added[id])}
    assert held_by(engine) == 1


@pytest.mark.slow
def test_many_loads_leave_nothing(engine, adapters):
    """With completions in flight under the older and the newest version, some of which follow."""
    loads = 1_000 if isinstance(engine, VllmEngine) else 300  # which has been run with 1,000 too
    loaded = engine.versions_loaded
    backlog = itertools.count()

    def ask() -> None:
        number = next(backlog)
        (request,) = requests(1, number, Sampling(1.0, 1.0, 0, 3))
        engine.add(replace(request, id=str(number), follows_newest=number % 3 == 0))

    def load(count: int) -> None:
        for number in range(count):
            engine.load(replace(adapters[number % 3], version=number))
            ask()
            engine.step()

    load(loads // 5)
    gc.collect()
    before = psutil.Process().memory_info().rss
    load(loads - loads // 5)
    drain(engine)
    gc.collect()
    grown = (psutil.Process().memory_info().rss - before) / 2**20
    assert engine.versions_loaded - loaded == loads and held_by(engine) == 1
    assert grown < 50, f"{grown:.0f} MB in {loads} loads of {len(adapters[0].weights)} bytes"
    if isinstance(engine, VllmEngine):
        assert engine.llm.llm_engine.list_loras() == {engine.newest}
        assert [*engine.files.folder.iterdir()] == [Path(engine.loaded[engine.newest].lora_path)]
        assert not engine.internal_ids and not engine.llm.llm_engine.has_unfinished_requests()
    else:
        assert list(engine.backend.model.peft_config) == ["default"]
        assert not engine.kept and not engine.chunks


def test_a_request_keeps_its_own_seed_until_it_has_drawn_something(engine, adapters):
    """A version that comes while it still waits changes nothing but the version."""
    engine.load(adapters[0])
    alone = generate(engine, requests(4))
    add(engine, (replace(request, follows_newest=True) for request in requests(4)))
    engine.load(replace(adapters[0], version=7))
    found = drain(engine)
    again = [found[request.id].completion for request in requests(4)]
    assert [tuple(one.token_ids) for one in again] == [tuple(one.token_ids) for one in alone]
    assert {version for one in again for version in one.versions} == {7}

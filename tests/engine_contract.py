"""What every engine does, as checks that the tests of engines run."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from unslothrl.engines.base import Engine, Finished, generate
from unslothrl.errors import AdapterDamaged
from unslothrl.records import Request, Sampling, seed_of
from unslothrl.weights.adapter import Adapter

TOKEN = 77  # what a biased version draws
SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=24)

Load = Callable[[int, bool], None]
"""Loads a version; with True one that hardly draws anything but `TOKEN`."""


def held_by(engine: Engine) -> int:
    """Versions that an engine has loaded and not unloaded yet."""
    return engine.versions_loaded - engine.versions_unloaded


def requests(
    count: int = 24, seed: int = 0, sampling: Sampling = SAMPLING, name: str = ""
) -> list[Request]:
    draw = random.Random(seed)
    return [
        Request(
            f"{name}{i}",
            tuple(draw.choices(range(3, 250), k=4 + i % 5)),
            seed_of(seed, i),
            sampling,
        )
        for i in range(count)
    ]


def add(engine: Engine, asked: Iterable[Request]) -> None:
    for request in asked:
        engine.add(request)


def steps(engine: Engine, count: int) -> dict[str, Finished]:
    """What ends in so many steps."""
    return {one.id: one for _ in range(count) for one in engine.step()}


def drain(engine: Engine) -> dict[str, Finished]:
    finished: dict[str, Finished] = {}
    while not engine.is_finished():
        for one in engine.step():
            assert one.id not in finished
            finished[one.id] = one
    return finished


def share(finished: Sequence[Finished], skip: int = 0) -> float:
    """How many of the tokens after the first `skip` are `TOKEN`."""
    tokens = [token for one in finished for token in one.completion.token_ids[skip:]]
    return tokens.count(TOKEN) / len(tokens)


def check_requests_join_others_that_run(engine: Engine) -> None:
    first, second = requests(6, name="a"), requests(6, 1, name="b")
    before = engine.sampled_tokens
    add(engine, first)
    found = steps(engine, 3)
    add(engine, second)
    # They do not wait for the first to end.
    found |= steps(engine, SAMPLING.max_new_tokens + 4)
    assert engine.is_finished()
    finished = {id: one.completion for id, one in found.items()}
    assert finished.keys() == {request.id for request in [*first, *second]}
    assert engine.sampled_tokens - before == sum(len(c.token_ids) for c in finished.values())
    for completion in finished.values():
        assert len(completion.token_ids) == len(completion.logprobs) == len(completion.versions)
        assert all(completion.sampled) and max(completion.logprobs) <= 0
    assert engine.step() == []


def check_an_id_is_in_flight_once(engine: Engine) -> None:
    add(engine, requests(1))
    with pytest.raises(ValueError, match="'0' is in flight already"):
        add(engine, requests(1))
    assert len(drain(engine)) == 1
    add(engine, requests(1))
    assert drain(engine).keys() == {"0"}


def check_abort(engine: Engine) -> None:
    alone = generate(engine, requests(4))
    add(engine, requests(4))
    finished = [*steps(engine, 3).values()]
    add(engine, requests(1, name="waits"))
    aborted = engine.abort(["1", "waits0", "unknown"])
    assert {one.id for one in aborted} <= {"1", "waits0"}
    for id, completion in aborted:
        assert completion.finish_reason == "abort"
        if id == "1":
            assert 1 <= len(completion.token_ids) <= 3
            assert (completion.token_ids == alone[1].token_ids[: len(completion.token_ids)]).all()
            assert len(completion.logprobs) == len(completion.versions) == len(completion.token_ids)
        else:
            assert not len(completion.token_ids)
    finished += [*aborted, *drain(engine).values()]
    assert sorted(one.id for one in finished) == ["0", "1", "2", "3", "waits0"]
    assert engine.abort(["0", "1"]) == [] and engine.is_finished()
    add(engine, requests(40))
    engine.step()
    assert len(engine.abort([request.id for request in requests(40)])) == 40
    assert engine.is_finished()


def check_versions_in_flight(engine: Engine, load: Load) -> None:
    load(5, False)
    ends, follows = requests(6, name="ends"), requests(6, 1, name="follows")
    follows = [replace(request, follows_newest=True) for request in follows]
    add(engine, [*ends, *follows])
    early = steps(engine, 4)
    load(6, True)
    newer = requests(6, 2, name="newer")
    add(engine, newer)
    by_id = early | drain(engine)
    of_ends, of_follows, of_newer = (
        [by_id[request.id] for request in part] for part in (ends, follows, newer)
    )
    assert {v for one in of_ends for v in one.completion.versions} == {5}
    assert {v for one in of_newer for v in one.completion.versions} == {6}
    assert share(of_ends) < 0.05 and share(of_newer) > 0.9
    longer = [one for one in of_follows if len(one.completion.token_ids) > 4]
    assert len(longer) > 3
    for one in longer:
        versions = tuple(one.completion.versions)
        assert versions == (5,) * versions.count(5) + (6,) * versions.count(6)
        assert 1 <= versions.count(5) <= 4 and one.completion.policy_version == 5
    assert share(longer, skip=4) > 0.9
    assert max(len(one.completion.token_ids) for one in by_id.values()) <= SAMPLING.max_new_tokens


def check_a_version_is_unloaded_with_its_last_request(engine: Engine, load: Load) -> None:
    """Neither earlier nor later, at every step; and the newest stays."""
    loaded = engine.versions_loaded
    waiting: dict[int, set[str]] = {}
    for version in (5, 6, 7):
        load(version, version == 6)
        drawn = requests(4, version, name=f"v{version}-")
        waiting[version] = {request.id for request in drawn}
        add(engine, drawn)
        for finished in engine.step():
            waiting[finished.completion.policy_version].remove(finished.id)
    assert engine.versions_loaded == loaded + 3 and held_by(engine) == 3
    held = set()
    while not engine.is_finished():
        for finished in engine.step():
            waiting[finished.completion.policy_version].remove(finished.id)
        assert held_by(engine) == 1 + bool(waiting[5]) + bool(waiting[6])
        held.add(held_by(engine))
    assert held >= {1, 2} and held_by(engine) == 1
    load(8, False)  # nothing is in flight
    assert held_by(engine) == 1
    add(engine, requests(3))
    assert engine.step() == []
    load(9, False)
    assert held_by(engine) == 2
    engine.abort(["0", "1"])
    assert held_by(engine) == 2
    engine.abort(["2"])
    assert held_by(engine) == 1


def check_what_waits_begins_under_the_newest(engine: Engine, load: Load) -> None:
    """More requests than run at once, and two versions that come one step after the other: each
    request has one version, and what neither of them found running has the last."""
    load(5, False)
    add(engine, requests(100))
    early = steps(engine, 2)
    load(6, False)
    early |= steps(engine, 1)
    load(7, True)
    assert held_by(engine) in (2, 3)
    by_id = early | drain(engine)
    assert by_id.keys() == {request.id for request in requests(100)}
    versions = {id: set(one.completion.versions) for id, one in by_id.items()}
    assert all(len(of_one) == 1 for of_one in versions.values())
    of_5, _, of_7 = ([one for id, one in by_id.items() if versions[id] == {n}] for n in (5, 6, 7))
    assert len(of_5) >= 16 and len(of_7) > 20
    assert share(of_5) < 0.05 and share(of_7) > 0.9
    assert held_by(engine) == 1


def check_a_number_that_is_loaded_again(engine: Engine, load: Load) -> None:
    """As a learner that restarts publishes it, with other weights: a version of its own."""
    load(6, True)
    first, second = requests(6, name="first"), requests(6, name="second")
    add(engine, first)
    early = steps(engine, 4)
    load(6, False)
    assert held_by(engine) == 2
    add(engine, second)
    by_id = early | drain(engine)
    assert {v for one in by_id.values() for v in one.completion.versions} == {6}
    assert share([by_id[request.id] for request in first]) > 0.9
    assert share([by_id[request.id] for request in second]) < 0.05
    assert held_by(engine) == 1
    load(6, False)
    assert share([Finished("", one) for one in generate(engine, requests(6))]) < 0.05
    assert held_by(engine) == 1


def check_requests_that_are_interrupted_again_and_again(engine: Engine, load: Load) -> None:
    """Before the first token, between any two, before the last, more of them than run at once."""
    load(0, False)
    before, counted = engine.versions_loaded, engine.sampled_tokens
    asked = [replace(one, follows_newest=True) for one in requests(40, 3)]
    add(engine, asked)
    by_id: dict[str, Finished] = {}
    version = 0
    while not engine.is_finished():
        version += 1
        load(version, False)
        assert held_by(engine) == 1
        by_id |= steps(engine, 1 + (version % 4 == 0))
    assert engine.versions_loaded - before == version
    assert by_id.keys() == {request.id for request in asked}
    for _, completion in by_id.values():
        tokens = len(completion.token_ids)
        assert len(completion.versions) == len(completion.logprobs) == tokens
        assert list(completion.versions) == sorted(completion.versions)
        most = SAMPLING.max_new_tokens
        assert completion.finish_reason == "stop" or tokens == most
        assert 1 <= tokens <= most and max(completion.logprobs) <= 0
        assert max(Counter(completion.versions.tolist()).values()) <= 2
    lengths = [len(one.completion.token_ids) for one in by_id.values()]
    assert lengths.count(SAMPLING.max_new_tokens) > 2  # interrupted before their last token too
    assert engine.sampled_tokens - counted == sum(lengths)
    assert len({one.completion.token_ids[0] for one in by_id.values()}) > 10


def check_a_version_speaks_at_once(engine: Engine, load: Load) -> None:
    for version, least, most in ((5, 0, 0.05), (6, 0.9, 1), (7, 0, 0.05)):
        load(version, version == 6)
        drawn = generate(engine, requests())
        assert {one.policy_version for one in drawn} == {version}
        assert least <= share([Finished("", one) for one in drawn]) <= most


def check_sleep(engine: Engine, load: Load) -> None:
    """A version may come while it sleeps, and adding wakes it."""
    load(10, False)
    first = generate(engine, requests(4))
    engine.sleep()
    engine.sleep()
    load(11, True)
    load(12, False)
    drawn = generate(engine, requests(4))
    assert {one.policy_version for one in drawn} == {12}
    assert [one.token_ids[0] for one in drawn] == [one.token_ids[0] for one in first]


def check_each_request_has_its_own_seed(engine: Engine) -> None:
    same_prompt = [Request(str(i), (5, 6, 7), seed_of("x", i), SAMPLING) for i in range(16)]
    first = generate(engine, same_prompt)
    assert generate(engine, same_prompt) == first
    assert len({tuple(one.token_ids) for one in first}) == 16
    pairs = zip(first, generate(engine, same_prompt[::-1])[::-1], strict=True)
    agree = [tuple(a.token_ids[:4]) == tuple(b.token_ids[:4]) for a, b in pairs]
    assert sum(agree) >= 14  # the place in the batch plays no part but for rounding


def check_a_damaged_adapter_is_refused(engine: Engine, good: Adapter) -> None:
    bad = replace(good, version=3, weights=memoryview(bytes(good.weights[:-1]) + b"\x01"))
    with pytest.raises(AdapterDamaged, match="v3 arrived damaged"):
        engine.load(bad)


OF_REQUESTS = [
    check_requests_join_others_that_run,
    check_an_id_is_in_flight_once,
    check_abort,
    check_each_request_has_its_own_seed,
]
OF_VERSIONS = [
    check_versions_in_flight,
    check_a_version_is_unloaded_with_its_last_request,
    check_what_waits_begins_under_the_newest,
    check_a_number_that_is_loaded_again,
    check_requests_that_are_interrupted_again_and_again,
    check_a_version_speaks_at_once,
    check_sleep,
]

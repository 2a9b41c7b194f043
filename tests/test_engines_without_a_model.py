"""The engine without a model keeps the contract of the real ones: tests may draw with it."""

from dataclasses import replace

import engine_contract as contract
import pytest
from fakes import FakeEngine

from unslothrl.engines.base import InFlight
from unslothrl.records import Request, Sampling, seed_of
from unslothrl.weights.adapter import Adapter


@pytest.fixture
def engine():
    engine = FakeEngine(max_running=16)
    engine.load(Adapter.of(0, b"", "{}"))
    return engine


@pytest.mark.parametrize("check", contract.OF_REQUESTS)
def test_requests(check, engine):
    check(engine)


@pytest.mark.parametrize("check", contract.OF_VERSIONS)
def test_versions(check, engine):
    def load(version: int, is_biased: bool) -> None:
        engine.load(Adapter.of(version, b"%d" % contract.TOKEN if is_biased else b"weights", "{}"))

    check(engine, load)


def test_a_damaged_adapter_is_refused(engine):
    contract.check_a_damaged_adapter_is_refused(engine, Adapter.of(3, b"weights", "{}"))


REQUEST = Request("a", (1, 2, 3), 77, Sampling(1.0, 0.9, 5, 10), follows_newest=True)


def test_what_is_left_of_a_request_that_goes_on():
    flight = InFlight(REQUEST, load=4, version=9)
    assert flight.left() is REQUEST
    flight.go_on(5, 10)  # before its first token: it begins anew, with its own seed
    assert flight.left() is REQUEST
    flight.extend((7, 8), (-0.1, -0.2))
    flight.go_on(6, 11)
    second = flight.left()
    seed, sampling = seed_of(77, "segment", 1), Sampling(1.0, 0.9, 5, 8)
    assert second == replace(REQUEST, prompt_ids=(1, 2, 3, 7, 8), seed=seed, sampling=sampling)
    flight.extend((9,), (-0.3,))
    flight.go_on(7, 11)  # the number again
    third = flight.left()
    assert third.seed == seed_of(77, "segment", 2) and third.sampling.max_new_tokens == 7
    flight.extend((2,), (-0.4,))
    completion = flight.completion("stop")
    assert tuple(completion.token_ids) == (7, 8, 9, 2)
    assert completion.logprobs == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert tuple(completion.versions) == (10, 10, 11, 11) and completion.policy_version == 10
    assert all(completion.sampled) and completion.finish_reason == "stop"

"""The fake engine keeps the contract of the real ones, so that tests may draw with it."""

import engine_contract as contract
import pytest
from fakes import FakeEngine

from unslothrl.types import Adapter


@pytest.fixture
def engine():
    engine = FakeEngine(max_running=16, favourites={6: contract.TOKEN, 11: contract.TOKEN})
    engine.load(Adapter.of(0, b"", "{}"))
    return engine


@pytest.fixture
def load(engine):
    return lambda version, is_biased: engine.load(Adapter.of(version, b"weights", "{}"))


@pytest.mark.parametrize("check", contract.OF_REQUESTS)
def test_requests(check, engine):
    check(engine)


@pytest.mark.parametrize("check", contract.OF_VERSIONS)
def test_versions(check, engine, load):
    check(engine, load)


def test_a_damaged_adapter_is_refused(engine):
    contract.check_a_damaged_adapter_is_refused(engine, Adapter.of(3, b"weights", "{}"))

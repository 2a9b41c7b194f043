"""The fake engine keeps the contract of the real ones, so that tests may draw with it."""

import engine_contract as contract
import pytest
from fakes import FakeEngine

from unslothrl.types import Adapter


@pytest.fixture
def engine():
    engine = FakeEngine(max_running=16)
    engine.load(Adapter.of(0, b"", "{}"))
    return engine


@pytest.fixture
def load(engine):
    def load(version: int, is_biased: bool) -> None:
        engine.load(Adapter.of(version, b"%d" % contract.TOKEN if is_biased else b"weights", "{}"))

    return load


@pytest.mark.parametrize("check", contract.OF_REQUESTS)
def test_requests(check, engine):
    check(engine)


@pytest.mark.parametrize("check", contract.OF_VERSIONS)
def test_versions(check, engine, load):
    check(engine, load)


def test_a_damaged_adapter_is_refused(engine):
    contract.check_a_damaged_adapter_is_refused(engine, Adapter.of(3, b"weights", "{}"))

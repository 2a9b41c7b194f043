"""Both engines without a model keep the contract of the real ones, so that tests and benchmarks may
draw with them."""

import engine_contract as contract
import pytest
from fakes import FakeEngine
from simulated.engine import EngineDelays, Lengths, SimulatedEngine

from unslothrl.weights.adapter import Adapter


def simulated() -> SimulatedEngine:
    return SimulatedEngine(EngineDelays(step_s=0.0), Lengths(median=12, sigma=0.8), max_running=16)


@pytest.fixture(params=[lambda: FakeEngine(max_running=16), simulated], ids=["fake", "simulated"])
def engine(request):
    engine = request.param()
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

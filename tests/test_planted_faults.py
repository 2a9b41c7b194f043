"""Each planted fault is named by `check-model`, or by the first batch of a run."""

import families
import planted_faults
import pytest
from few_cases import few
from test_first_batch import learner, proved

from unslothrl.commands import check_model
from unslothrl.errors import RunError
from unslothrl.training import first_batch
from unslothrl.weights import base_model

pytestmark = pytest.mark.real


def failed(base, whole) -> list[str]:
    """The checks that fail; what raises before has its own line."""
    found = check_model.examine(base, "transformers", whole)
    named = [each.name for each in found if each.passed is False]
    try:
        first_batch.verdict([proved(learner(base=base))], 0, is_exact=False)
    except RunError as error:
        named.append(str(error))
    return named


@pytest.mark.parametrize("fault", few(planted_faults.FAULTS))
def test_a_fault_is_named(tmp_path, monkeypatch, fault, own_cache):
    name, when = planted_faults.FAULTS[fault]
    whole = families.saved(tmp_path / "base", families.built(families.TRAINED[name]()))
    if when == "before":
        fault(monkeypatch)
    base = base_model.prepare(str(whole))
    if when == "after":
        fault(monkeypatch)
    found = failed(base, whole)
    assert found, fault.__name__

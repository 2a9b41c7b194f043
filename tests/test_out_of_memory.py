"""What happens where memory runs out: smaller micro-batches and chunks, with the same result."""

import json
import re
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import run_script

from unslothrl.learners.passes import Passes
from unslothrl.sharding.split import Split
from unslothrl.system import cpu_products
from unslothrl.system.memory import is_out_of_memory

pytestmark = pytest.mark.real


@pytest.mark.slow
def test_a_process_with_too_little_memory_updates_and_draws_the_same(bases, tmp_path):
    """It repeats an update with smaller micro-batches, and generates with fewer rows meanwhile."""
    frees = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back to the system
    said = run_script(
        "limited_memory.py", bases["plain"], cwd=tmp_path, OMP_NUM_THREADS="1", **frees
    )
    limited = json.loads(re.search(r"^{.*}$", said, re.MULTILINE)[0])
    update, generation = limited["update"], limited["generation"]
    assert "memory ran out: micro-batches are" in update["note"]
    assert 1 <= update["micro_batch"] < 32
    assert update["apart"] < 1e-5
    assert generation["shortages"] >= 1 and generation["rows"][-1] == 64
    assert generation["same"] == generation["of"] == 64


def test_what_counts_as_out_of_memory():
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**60, dtype=torch.int8)
    assert is_out_of_memory(real.value) and is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))
    cublas = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    assert is_out_of_memory(RuntimeError(cublas))
    assert is_out_of_memory(RuntimeError("Triton Error [CUDA]: out of memory"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    illegal = "CUDA error: an illegal memory access was encountered"
    assert not is_out_of_memory(torch.AcceleratorError(illegal))
    assert not is_out_of_memory(ValueError("can't allocate memory"))


def test_a_primitive_that_onednn_cannot_create_is_left_out(monkeypatch):
    """A pass of the same size goes on without oneDNN, once, and not at a tenth of the speed."""
    replaced = Mock()
    monkeypatch.setattr(cpu_products, "multiply_in_float32", replaced)
    backend = SimpleNamespace(split=Split(), free_cache=lambda: None)
    passes = SimpleNamespace(backend=backend, is_smallest=True, micro_batch=4, context=8)
    seen = []

    def computed(is_broken):
        seen.append(torch.backends.mkldnn.enabled)
        if seen[-1] or is_broken:
            raise RuntimeError("could not create a primitive")
        return 7

    with torch.backends.mkldnn.flags(enabled=True):
        assert Passes.within_memory(passes, lambda: computed(False)) == 7
        with pytest.raises(RuntimeError, match="primitive"):
            Passes.within_memory(passes, lambda: computed(True))
    assert seen == [True, False, False] and passes.micro_batch == 4
    replaced.assert_called_once_with(without_onednn=True)

"""What replaces a function of vLLM's on a CPU, beside what that computes."""

import pytest
import torch

from unslothrl.engines import vllm_internals


def copied(inputs, weights, slots, dtype):
    """As vLLM does: the matrix of each token."""
    chosen = weights[slots].squeeze(1).to(dtype)
    return torch.einsum("bi, boi -> bo", inputs.to(dtype), chosen)


@pytest.mark.parametrize("slots", [[1] * 5, [0, 1, 1, 0, 2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_multiplied_by_the_matrix_of_their_slot(slots, dtype):
    torch.manual_seed(0)
    a, b = torch.randn(3, 1, 4, 16), torch.randn(3, 1, 6, 4)
    x, slots = torch.randn(5, 16), torch.tensor(slots)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.05}
    middle = torch.zeros(5, 8)  # wider than the rank
    vllm_internals.shrink(x, a, middle, slots, 0.5)
    torch.testing.assert_close(middle[:, :4], 0.5 * copied(x, a, slots, torch.float32))
    assert not middle[:, 4:].any()
    for adds in (True, False):
        before = torch.randn(5, 10, dtype=dtype)
        into = before.clone()
        vllm_internals.expand_slice(middle[:, :4], b, into, slots, 2, 6, add_inputs=adds)
        found = copied(middle[:, :4], b, slots, dtype)
        torch.testing.assert_close(into[:, 2:8], before[:, 2:8] * adds + found, **close)
        assert torch.equal(into[:, :2], before[:, :2]) and torch.equal(into[:, 8:], before[:, 8:])


@pytest.mark.real
def test_vllm_has_what_is_replaced():
    from vllm.lora.punica_wrapper import punica_cpu

    vllm_internals.multiply_on_cpu()
    assert punica_cpu.bgmv_shrink is vllm_internals.shrink
    wrapper = punica_cpu.PunicaWrapperCPU
    assert {"bgmv_shrink", "sgmv_shrink"} & {*wrapper._shrink_decode.__code__.co_names}

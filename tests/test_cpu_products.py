"""Products of bfloat16 that are computed in float32: the same values; other types are torch's."""

import pytest
from python_process import python

# In a process of its own, as torch's kernels are replaced for good.
REPLACED = """
import warnings

import torch
from torch.nn.functional import linear

warnings.simplefilter("error")
torch.manual_seed(0)
x, weight, bias = torch.randn(4, 5, 64), torch.randn(16, 64), torch.randn(16)
left, right = torch.randn(4, 20, 6), torch.randn(4, 6, 7)
double = torch.randn(5, 5, dtype=torch.float64)
before = linear(x, weight, bias), linear(x, weight), left @ right, double @ double

from unslothrl.system import cpu_products

torch.backends.cpu.get_cpu_capability = lambda: "AVX2"
assert cpu_products.FEW == 16  # so what follows is beyond it
assert cpu_products.multiply_in_float32() is cpu_products.multiply_in_float32() is not None
after = linear(x, weight, bias), linear(x, weight), left @ right, double @ double
assert all(map(torch.equal, before, after))

half, weight = x.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_()
found = linear(half, weight, bias.bfloat16())
exact = linear(half.float(), weight.float(), bias.bfloat16().float())
assert found.dtype == torch.bfloat16 and torch.equal(found, exact.bfloat16())
pair = left.bfloat16(), right.bfloat16()
assert torch.equal(pair[0] @ pair[1], (pair[0].float() @ pair[1].float()).bfloat16())
found.sum().backward()
ones = torch.ones(20, 16)
assert torch.equal(half.grad.view(20, 64), (ones @ weight.float()).bfloat16())
assert torch.equal(weight.grad, (ones.T @ half.view(20, 64).float()).bfloat16())

for wrong in ((half.view(20, 64), x.view(20, 64)), (half.view(20, 64), weight)):
    try:
        torch.mm(*wrong)
    except RuntimeError:
        continue
    raise AssertionError("types or sizes that do not fit were multiplied")

torch.backends.cpu.get_cpu_capability = lambda: "AVX512"
assert cpu_products.multiply_in_float32() is None
assert cpu_products.multiply_in_float32(without_onednn=True) is not None
"""


@pytest.mark.real
@pytest.mark.parametrize(("rows", "dtype"), [(15, "bfloat16"), (16, "float32")])
def test_a_few_rows_are_left_to_torch(rows, dtype):
    import torch

    from unslothrl.system import cpu_products

    given = []

    def product(*tensors, out):
        given.extend(each.dtype for each in (*tensors, out))
        return torch.ops.aten.mm.out(*tensors, out=out)

    left, right = torch.ones(rows, 3).bfloat16(), torch.ones(3, 2).bfloat16()
    found = cpu_products.rounded(product)(left, right)
    assert {*given} == {getattr(torch, dtype)}
    assert found.dtype == torch.bfloat16 and found.tolist() == [[3.0, 3.0]] * rows


@pytest.mark.real
def test_the_values_are_those_of_float32_rounded():
    python("-c", REPLACED)

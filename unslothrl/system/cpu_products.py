"""Products of bfloat16 matrices on a CPU that has no instructions for them.

Without AVX-512 torch multiplies them fifteen times slower than float32. Computed in float32 and
rounded, each is the same but for the order of its sums, and a step of the embedded base takes a
third of the time. Of a few rows the conversion would cost more than it gains.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

OPERATORS = ("mm", "addmm", "bmm")
WITH_INSTRUCTIONS = "AVX512"  # as torch calls it
FEW = 16  # rows; by matrices of 2048 x 8192, 8 take twice as long, 32 less


def multiply_in_float32(without_onednn: bool = False) -> "torch.library.Library | None":
    """Replaces torch's kernels in this process, where the CPU lacks the instructions, or where
    torch does `without_onednn`, which alone uses them."""
    has_instructions = torch.backends.cpu.get_cpu_capability() == WITH_INSTRUCTIONS
    return None if has_instructions and not without_onednn else replaced()


@functools.cache
def replaced() -> "torch.library.Library":
    library = torch.library.Library("aten", "IMPL")  # kernels last as long as it
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*overrid", UserWarning)
        for name in OPERATORS:
            library.impl(name, rounded(getattr(torch.ops.aten, name).out), "CPU")
    return library


def rounded(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A kernel for ([bias,] left [..., n, k], right [..., k, m]) -> [..., n, m]. `product` is
    torch's with `out`, which stays as it is."""

    def kernel(*tensors: torch.Tensor, **scales: Any) -> torch.Tensor:
        is_slow = tensors[-2].shape[-2] >= FEW and all(
            each.dtype == torch.bfloat16 for each in tensors
        )
        given = [each.float() for each in tensors] if is_slow else tensors
        left, right = given[-2:]
        out = left.new_empty(*left.shape[:-1], right.shape[-1])
        found = product(*given, out=out, **scales)
        return found.bfloat16() if is_slow else found

    return kernel

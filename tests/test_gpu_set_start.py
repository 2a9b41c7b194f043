"""What vLLM 0.26 does at its start on simulated GPUs: its runner under WSL 2, the CUDA graphs that
it captures, the kernels that it compiles."""

import os
import sys
import types

import pytest
import simulated_driver
import vllm_without_kernels
from python_process import python
from test_gpu_set_lora import make_base

from unslothrl.engines import vllm_internals
from unslothrl.engines.vllm_internals import graph_sizes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_base(tmp_path_factory.mktemp("base"), "qwen2", True)


@pytest.fixture(autouse=True)
def rtx_3060():
    simulated_driver.set_gpus(simulated_driver.RTX_3060)


WSL2 = """
import os, platform, sys
kernel = platform.uname()._replace(release="6.6.87.2-microsoft-standard-WSL2")
platform.uname = lambda: kernel
platform.release = lambda: kernel.release
import simulated_driver
simulated_driver.set_gpus(simulated_driver.RTX_3060)
if sys.argv[2] == "ours":
    from unslothrl.engines.vllm import set_variables
    set_variables()
import torch, vllm_without_kernels
from pathlib import Path
import vllm.config.vllm
from vllm.utils.platform_utils import is_uva_available
from vllm.v1.worker.gpu.buffer_utils import UvaBuffer
vllm.config.vllm.HAS_TRITON = True  # as where there is a driver
config = vllm_without_kernels.configuration(Path(sys.argv[1]), rank=16)
print("V2 runner:", config.use_v2_model_runner, "UVA:", is_uva_available())
try:
    UvaBuffer(8, torch.int32)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize("variables", ["ours", "none"])
def test_the_runner_finds_pinned_memory_under_wsl2(variables, base):
    environ = {name: os.environ[name] for name in os.environ if not name.startswith("VLLM_WSL2")}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    printed = python("-c", WSL2, base, variables, env=environ).stdout
    assert f"V2 runner: True UVA: {variables == 'ours'}\n" in printed
    assert ("UVA is not available" in printed) == (variables == "none")


def graphs(config, monkeypatch) -> dict[str, list[tuple[int, int]]]:
    """-> by mode the (tokens, adapters) of each graph that vLLM would capture."""
    import torch
    from vllm.v1.worker.gpu import cudagraph_utils, lora_utils

    group = types.SimpleNamespace(is_first_rank=True, is_last_rank=True)
    monkeypatch.setattr(cudagraph_utils, "get_pp_group", lambda: group)
    monkeypatch.setattr(
        cudagraph_utils, "current_platform",
        types.SimpleNamespace(get_global_graph_pool=lambda: None),
    )  # fmt: skip
    compilation = config.compilation_config
    manager = cudagraph_utils.CudaGraphManager(
        config, torch.device("cpu"), compilation.cudagraph_mode, decode_query_len=1,
        lora_capture_cases=lora_utils.get_lora_capture_cases(config.lora_config, compilation),
    )  # fmt: skip
    return {
        mode.name: [(each.num_tokens, each.num_active_loras) for each in found]
        for mode, found in manager._capture_descs.items()
    }


def test_less_than_half_of_vllms_own_graphs_are_captured(base, monkeypatch):
    monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)

    def of_sizes(sizes):
        return vllm_without_kernels.configuration(
            base, rank=16, enforce_eager=False, max_num_seqs=255, max_num_batched_tokens=8192,
            cudagraph_capture_sizes=sizes,
        )  # fmt: skip

    vllms_own = of_sizes(None)
    found = graphs(vllms_own, monkeypatch)
    assert {mode: len(of_mode) for mode, of_mode in found.items()} == {"FULL": 68, "PIECEWISE": 100}
    assert max(found["FULL"])[0] == 248  # more sequences would run without a full graph
    vllms_own.compilation_config.cudagraph_specialize_lora = False
    assert graphs(vllms_own, monkeypatch) == found  # it leaves out nothing for one adapter

    found = graphs(of_sizes(graph_sizes(255)), monkeypatch)
    assert {mode: len(of_mode) for mode, of_mode in found.items()} == {"FULL": 38, "PIECEWISE": 38}
    assert {adapters for _, adapters in found["FULL"]} == {0, 2}  # base samples have theirs
    assert max(found["FULL"])[0] == 255


def test_the_sizes_of_graphs():
    assert graph_sizes(1) == [1]
    assert graph_sizes(8) == [1, 2, 4, 8]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert graph_sizes(255)[-5:] == [128, 160, 192, 224, 255] and len(graph_sizes(255)) == 19


@pytest.mark.parametrize("left_out", [False, True])
def test_no_router_kernel_of_another_model_is_compiled(left_out, monkeypatch):
    from vllm.model_executor.kernels.linear.cute_dsl import ll_bf16
    from vllm.model_executor.warmup import kernel_warmup

    compiled: list[object] = []
    monkeypatch.setattr(ll_bf16.ll_bf16_gemm_kernel, "compile", compiled.append)
    monkeypatch.setattr(ll_bf16, "_cutedsl_available", None)
    if left_out:
        vllm_internals.leave_out_router_kernels()
    kernel_warmup._warmup_ll_bf16_router_gemm()
    assert len(compiled) == (0 if left_out else 17)

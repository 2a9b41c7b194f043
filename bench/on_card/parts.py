"""Measures the two figures of `unslothrl plan` that need a GPU: CUDA's context and CUDA graphs.

    python bench/on_card/parts.py --model FOLDER

Each in a separate process: the memory of a process after its first matrix product; then of an
actor's vLLM with a fixed KV cache and as many sequences as a run has: without CUDA graphs, with
them, and without those for batches that have no LoRA, of which a run has none. Writes
parts-gpu.json in $OUT; without a GPU, parts-cpu.json, of resident memory.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import memory

sys.path.insert(0, str(Path(__file__).parents[1]))
from facts import facts, result_file

ALL = {"cudagraph_specialize_lora": True}
KINDS: dict[str, dict] = {  # what is measured -> what vLLM is given besides
    "context": {},
    "vLLM without graphs": {"enforce_eager": True},
    "vLLM with graphs": {"compilation_config": ALL},
    "vLLM with graphs for a LoRA alone": {"compilation_config": ALL | dict.fromkeys(ALL, False)},
}


def context() -> object:
    """Makes a CUDA context and cuBLAS's workspace by one matrix product."""
    import torch

    where = "cuda" if torch.cuda.is_available() else "cpu"
    values = torch.ones(256, 256, dtype=torch.bfloat16, device=where)
    return (values @ values).sum().item(), values


def start_vllm(model: Path, more: dict) -> object:
    """An actor with vLLM as a run starts it, but for `more` of its keywords."""
    import torch
    import vllm

    plain = vllm.LLM

    def start(*args, **options):
        return plain(*args, **options | (more if torch.cuda.is_available() else {}))

    vllm.LLM = start  # type: ignore[misc, assignment]
    from unslothrl.cluster import build
    from unslothrl.runs.resolve import resolve
    from unslothrl.weights import base_model

    flags = {"model": str(model), "dataset": "embedded", "engine": "vllm", "number_of_actors": 1}
    flags |= {"kv_cache_mb": 2048 if torch.cuda.is_available() else 64}
    config = resolve({**flags, "fit": "off"}).config
    return build.build_actor(config, base_model.prepare(str(model)))


def measure(kind: str, model: Path) -> dict:
    """Memory and seconds of one of `KINDS`, in this process."""
    source, read = memory.reader()
    before, _ = read()
    began = time.perf_counter()
    kept = context() if kind == "context" else start_vllm(model, KINDS[kind])
    seconds = time.perf_counter() - began
    after, _ = read()
    del kept
    return {"MB": after - before, "seconds": round(seconds, 1), "read from": source}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--only", choices=KINDS, help="in this process, as JSON")
    given = parser.parse_args()
    if given.only:
        print(json.dumps(measure(given.only, given.model)))
        return
    found: dict = {}
    for kind in KINDS:
        command = [sys.executable, __file__, "--model", str(given.model), "--only", kind]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[kind] = json.loads(done.stdout.splitlines()[-1])
        print(f"{kind}: {found[kind]}", flush=True)
    eager = found["vLLM without graphs"]["MB"]
    graphs = {kind: found[kind]["MB"] - eager for kind in KINDS if "with graphs" in kind}
    result = {"command": "python bench/on_card/parts.py", **facts(), **found, "graphs, MB": graphs}
    result_file("parts").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

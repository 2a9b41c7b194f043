"""Learners that divide the work of one, beside one that does all of it; over gloo on a CPU.

    python bench/sharding.py memory [--ranks 1 2 4]   # a base of 300M: memory, bytes, CPU seconds
    python bench/sharding.py plan                     # 7B's shape, 4 ranks: memory beside the plan
    python bench/sharding.py length                   # the longest row under a limit of memory
    python bench/sharding.py runs [--steps 30]        # the main job in each way, with a vLLM actor
    python bench/sharding.py published                # the planner beside published figures
    python bench/sharding.py one-gpu --model FOLDER   # two processes on one GPU, bits and memory

memory      a random base in NF4, 20 layers of width 1,024. In each rank anonymous memory over what
            the libraries take: after loading, its peak while loading and in an update of four
            sequences of 64 tokens; the bytes that it received, by the counts of its gathers and by
            `planning.forecast`; the CPU seconds of an update, the first apart
plan        a base of random bytes; the peak of a rank in an update of one sequence of 64 tokens
length      one row through 2 layers of width 512 with recompute; the memory over that after loading
runs        pass@1 and the sampler gap of the last steps, and whether the published adapters are
            those of the run with as many undivided learners, byte for byte
published   reserved memory that others have measured, FSDP with QLoRA, on two GPUs or more

Writes bench/results/sharding-cpu.json, a part for each command.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT), str(ROOT / "bench")]
MB = 2**20
FREES = "MALLOC_MMAP_THRESHOLD_"  # where memory is measured: else glibc keeps what is freed
WAYS = {
    "one learner": {},
    "two learners": {"number_of_learners": 2},
    "2 shards": {"learner_shards": 2},
    "2 context ranks": {"context_parallel": 2},
    "2 tensor ranks": {"learner_tensor_parallel": 2},
    "2 stages": {"pipeline_stages": 2},
}
JOB = {
    "learner": "grpo", "number_of_actors": 1, "learner_chunk_size": 0, "backend": "peft",
    "engine": "vllm", "batch_size": 8, "num_candidates": 8, "topk": 8, "lr": 5e-4,
    "eval_problems": 64, "eval_candidates": 4, "eval_every": 15, "save_every": 10, "seed": 1,
}  # fmt: skip
LIMIT_MB, LAYERS, WIDTH = 300, 2, 512
PUBLISHED = (  # GPUs, model, tokens of a row, rows, GiB; github.com/AnswerDotAI/fsdp_qlora,
    # benchmarks_03_2024.md, which axolotl's page on FSDP and QLoRA refers to
    (2, "Llama-2-7B", 512, 1, 4.98),
    (2, "Llama-2-7B", 2048, 1, 5.21),
    (2, "Llama-2-7B", 2048, 10, 20.97),
    (2, "Yi-34B", 2048, 2, 23.05),
)


def anonymous_mb() -> float:
    return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


class Peak(threading.Thread):
    """Of `anonymous_mb` until `stop`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.ended = 0.0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.ended.wait(0.005):
            self.most = max(self.most, anonymous_mb())

    def stop(self) -> float:
        self.ended.set()
        return self.most


def make_base(folder: Path, layers: int, width: int, inner: int) -> Path:
    import torch
    from on_card.model import add_tokenizer, quantised
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(
        vocab_size=32_000, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=4, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    quantised(LlamaForCausalLM(config)).save_pretrained(folder)
    return add_tokenizer(folder)


def make_large(folder: Path, name: str) -> Path:
    """A base of a real model's shape in NF4, of which no 16-bit copy is ever there: all layers have
    the same random bytes."""
    import safetensors.torch
    import torch
    from bitsandbytes.functional import quantize_4bit
    from on_card.model import SHAPES, add_tokenizer, config_of

    from unslothrl.weights.shapes import shape_of

    config, shape = config_of(name, False), shape_of(f"someone/{SHAPES[name]}")
    torch.manual_seed(0)
    layer: dict[str, torch.Tensor] = {}
    for path, (into, out) in shape.linears().items():
        if not (linear := path.removeprefix("layers.0.")) < path:
            continue
        weight = torch.randn(out, into, dtype=torch.bfloat16) * 0.02
        packed, state = quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
        layer[f"{linear}.weight"] = packed
        more = state.as_dict(packed=True).items()
        layer |= {f"{linear}.weight.{key}": value for key, value in more}
        if shape.biases and linear.endswith(("q_proj", "k_proj", "v_proj")):
            layer[f"{linear}.bias"] = torch.zeros(out, dtype=torch.bfloat16)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        layer[f"{norm}.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
    table = torch.randn(shape.vocabulary, shape.hidden, dtype=torch.bfloat16) * 0.02
    tables = {"model.embed_tokens.weight": table, "lm_head.weight": table.clone()}
    files = {"tables": tables | {"model.norm.weight": layer["input_layernorm.weight"].clone()}}
    for number in range(shape.layers):
        prefix = f"model.layers.{number}."
        files[f"layer-{number}"] = {prefix + key: value for key, value in layer.items()}
    folder.mkdir()
    index = {}
    for file, tensors in files.items():
        safetensors.torch.save_file(tensors, folder / f"{file}.safetensors", {"format": "pt"})
        index |= dict.fromkeys(tensors, f"{file}.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    config.architectures = ["Qwen2ForCausalLM"]
    config.quantization_config = {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16",
    }  # fmt: skip
    config.save_pretrained(folder)
    return add_tokenizer(folder)


def at_work(rank, world_size, address, stores, base, sequences: int = 4):
    """-> a learner, one of those that share the base, and its part of a batch."""
    import torch
    from test_backend import sample_of
    from test_shards import GRPO, joined

    from unslothrl.records import Batch

    split = {"learner_shards": world_size} if world_size > 1 else {}
    settings = {**GRPO, "dtype": "bfloat16", "recompute": torch.cuda.is_available()}
    learner = joined(rank, world_size, address, stores, base, split, settings)
    learner.passes.micro_batch, learner.passes.context = 1, 66
    learner.passes.objective = type(learner.passes.objective)()
    samples = [sample_of(64) for _ in range(sequences)][rank::world_size]
    return learner, Batch(tuple(samples), sequences, 64 * sequences)


def cpu_seconds(rank, world_size, address, stores, base):
    """-> of three updates each, after one in which kernels are made."""
    from test_shards import LRS

    learner, batch = at_work(rank, world_size, address, stores, base)
    found = []
    for _ in range(4):
        before = time.process_time()
        learner.update(batch, LRS, deadline_s=600.0)
        found.append(round(time.process_time() - before, 2))
    learner.close()
    return found[1:]


def work(rank, world_size, address, stores, base, sequences: int = 4):
    """-> the figures of a rank in `memory`, `plan` and `one-gpu`."""
    import torch
    from test_shards import LRS, counting

    from unslothrl.planning import forecast
    from unslothrl.weights.shapes import shape_of

    imports_mb, peak = anonymous_mb(), Peak()
    learner, batch = at_work(rank, world_size, address, stores, base, sequences)
    found = {"imports, MB": imports_mb, "loading, peak MB": peak.stop() - imports_mb}
    found["loaded, MB"] = anonymous_mb() - imports_mb
    shards = learner.backend.split.shards
    gathers = [] if shards is None else counting(shards)
    peak = Peak()
    learner.update(batch, LRS, deadline_s=600.0)
    found["update, peak MB"] = peak.stop() - imports_mb
    if torch.cuda.is_available():
        found["update, peak MB of the GPU"] = torch.cuda.max_memory_allocated() / MB
    if shards is not None:
        received = sum(size for size, _ in gathers) * (world_size - 1) / world_size / MB
        count = -(-sequences // world_size)
        planned = forecast.shards_bytes(shape_of(str(base)), world_size, count) / MB
        found |= {
            "part, MB": sum(len(unit.part) for unit in shards.units) / MB,
            "two units, MB": 2 * max(len(unit.whole) for unit in shards.order) / MB,
        }
        found |= {"received, MB": received, "planned, MB": planned, "gathers": len(gathers)}
    learner.close()
    return {name: round(value, 2) for name, value in found.items()}


def memory(given) -> dict:
    from test_exchange import meet

    result = {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        base = make_base(Path(folder) / "base", 20, 1024, 4096)
        for ranks in given.ranks:  # as many threads as cores: more spin while they wait
            os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // ranks))
            os.environ.pop(FREES, None)
            seconds = meet(cpu_seconds, ranks, base)
            os.environ[FREES] = "65536"
            found = {"update, CPU s": [round(sum(each), 2) for each in zip(*seconds, strict=True)]}
            result[f"{ranks} ranks"] = {**found, "each": meet(work, ranks, base)}
            print(ranks, json.dumps(result[f"{ranks} ranks"]), flush=True)
    return result


def plan(given) -> dict:
    from test_exchange import meet

    from unslothrl.config.options import Config
    from unslothrl.planning import footprint
    from unslothrl.weights.shapes import shape_of

    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        base = make_large(Path(folder) / "base", "7B")
        config = Config(
            model=str(base), learner="grpo", learner_shards=4, number_of_learners=4,
            number_of_actors=1, learner_chunk_size=0, max_lora_rank=8, backend="peft",
            train_batch_size=1, max_prompt_tokens=2, max_new_tokens=64,
        )  # fmt: skip
        needs = footprint.learner(config, shape_of(str(base)), None)
        ranks = meet(work, 4, base, 1)
    planned = needs.updating_mb()
    peaks = [rank["update, peak MB"] for rank in ranks]
    return {
        "planned, MB": round(planned, 1), "planned": needs.to_json()["updating"],
        "measured, MB": peaks, "measured / planned": [round(peak / planned, 3) for peak in peaks],
        "loading, peak MB": [rank["loading, peak MB"] for rank in ranks],
    }  # fmt: skip


def row(rank, world_size, address, stores, base):
    """-> {tokens of a row: peak MB over what is there after loading} of a rank."""
    from test_backend import sample_of
    from test_shards import joined

    from unslothrl.records import Batch

    split = {"context_parallel": world_size} if world_size > 1 else {}
    settings = {"objective": "grpo", "recompute": True}
    learner = joined(rank, world_size, address, stores, base, split, settings)
    learner.passes.micro_batch, before, found = 1, anonymous_mb(), {}
    for step in (2, 3, 4, 5, 6):
        tokens = 1024 * step * world_size
        learner.passes.context = tokens
        sample = sample_of(tokens - 2)
        sample.completion_ids[:] = sample.completion_ids % 1000
        peak = Peak()
        learner.forward_backward(Batch((sample,), 1, tokens - 2))
        found[tokens] = round(peak.stop() - before)
        print(world_size, rank, tokens, found[tokens], flush=True)
        if found[tokens] > 1.3 * LIMIT_MB:
            break
    learner.close()
    return found


def length(given) -> dict:
    from test_exchange import meet

    result: dict = {"limit, MB": LIMIT_MB}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        base = make_base(Path(folder) / "base", LAYERS, WIDTH, 4 * WIDTH)
        for ranks in given.ranks:
            peaks = meet(row, ranks, base)
            largest = {tokens: max(each[tokens] for each in peaks) for tokens in peaks[0]}
            longest = max((t for t, mb in largest.items() if mb <= LIMIT_MB), default=0)
            result[f"{ranks} ranks"] = {"longest, tokens": longest, "peak MB by tokens": largest}
            print(ranks, json.dumps(result[f"{ranks} ranks"]), flush=True)
    return result


def runs(given) -> dict:
    result, folders = {}, {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as room:
        for way, flags in WAYS.items():
            name = way.replace(" ", "-")
            every = {**JOB, **flags, "max_steps": given.steps, "output_dir": room, "run_name": name}
            words = [word for key, value in every.items() for word in (f"--{key}", str(value))]
            began = time.monotonic()
            log = Path(room) / f"{name}.log"
            with log.open("w") as out:
                command = [sys.executable, "-m", "unslothrl", "train", *words]
                code = subprocess.run(command, cwd=ROOT, stdout=out, stderr=out).returncode
            if code:
                result[way] = {"exit code": code, "end": log.read_text()[-2000:]}
            else:
                folders[way] = Path(room) / name
                result[way] = of_run(folders[way], folders, time.monotonic() - began)
            print(way, json.dumps(result[way]), flush=True)
    return {"steps": given.steps, "flags": JOB, **result}


def of_run(folder: Path, folders: dict[str, Path], seconds: float) -> dict:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evals = [
        {"step": row["step"], **{k: v for k, v in row.items() if k.endswith(("pass@1", "pass1"))}}
        for row in rows
        if any(key.startswith("eval/") for key in row)
    ]
    gaps = [row["train/sampler_gap"] for row in rows if "train/sampler_gap" in row]
    adapters = {p.parent.name: p.read_bytes() for p in folder.glob("adapters/v*/*.safetensors")}
    same = {
        way: all((other / f"adapters/{name}/adapter_model.safetensors").read_bytes() == weights
                 for name, weights in adapters.items())
        for way, other in folders.items() if other != folder
    }  # fmt: skip
    return {
        "seconds": round(seconds), "evaluations": evals,
        "sampler gap, mean of last 10": round(sum(gaps[-10:]) / len(gaps[-10:]), 5),
        "sampler gap, largest": round(max(gaps), 5), "same adapters as": same,
    }  # fmt: skip


def published(given) -> dict:
    """PEFT with a LoRA of rank 64 on all linear layers, as there; a row is one micro-batch's."""
    from unslothrl.config.options import Config
    from unslothrl.planning import footprint
    from unslothrl.system.machine import Gpu
    from unslothrl.weights.shapes import Shape

    shapes = {
        "Llama-2-7B": Shape(32, 4096, 11_008, 32, 32, 128, 32_000, False),
        "Yi-34B": Shape(60, 7168, 20_480, 56, 8, 128, 64_000, False),
    }
    gpu, found = Gpu("RTX 3090", 24 * 1024, 24 * 1024, (8, 6)), []
    for gpus, model, tokens, rows, gib in PUBLISHED:
        config = Config(
            learner="grpo", learner_shards=gpus, number_of_learners=gpus, max_lora_rank=64,
            backend="peft", train_batch_size=rows, max_prompt_tokens=1, max_new_tokens=tokens - 1,
            learner_chunk_size=0,
        )  # fmt: skip
        needs = footprint.learner(config, shapes[model], gpu)
        ours = (needs.updating_mb() - needs.updating["CUDA context"]) / 1024
        found.append(
            {"GPUs": gpus, "model": model, "tokens": tokens, "rows": rows,
             "published, GiB": gib, "planned, GiB": round(ours, 2)}
        )  # fmt: skip
        print(json.dumps(found[-1]))
    return {"rows": found}


def one_gpu(given) -> dict:
    """Over gloo, since NCCL refuses two processes on one GPU. Bits: of two undivided learners."""
    from test_exchange import meet
    from test_shards import GRPO, train

    both = [meet(train, 2, given.model, split, {**GRPO, "dtype": "bfloat16", "recompute": True})
            for split in ({}, {"learner_shards": 2})]  # fmt: skip
    equal = [alone[:3] == shared[:3] for alone, shared in zip(*both, strict=True)]
    ranks = {f"{n} processes": meet(work, n, given.model) for n in (1, 2)}
    return {"note": "two processes on one GPU, over gloo", "equal bits": equal, **ranks}


COMMANDS = {"memory": memory, "plan": plan, "length": length, "runs": runs,
            "published": published, "one-gpu": one_gpu}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--model", type=Path)
    given = parser.parse_args()
    from facts import facts, result_file

    os.environ[FREES] = "65536"
    path = result_file("sharding")
    result = json.loads(path.read_text()) if path.exists() else {}
    command = f"python bench/sharding.py {given.what}"
    result[given.what] = {**facts(), "command": command, **COMMANDS[given.what](given)}
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

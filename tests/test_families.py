"""Each family end to end: the main job over vLLM, stopped and resumed to the bit, exported."""

import json
import shlex
from pathlib import Path

import families
import numpy as np
import pytest
import safetensors.torch
import torch
from python_process import python
from runs_compared import rows as rows_of
from transformers import AutoModelForCausalLM

from unslothrl.backends import peft
from unslothrl.records import Sample
from unslothrl.weights import base_model, decoder, shapes

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "train_distributed.py"
JOB = shlex.split(
    "--learner grpo --cluster local --number_of_actors 1 --engine vllm --dataset sums.jsonl "
    "--output_dir . --batch_size 4 --num_candidates 4 --topk 4 --max_prompt_tokens 300 "
    "--max_new_tokens 24 --max_lora_rank 8 --eval_every 0 --lr 1e-3 --save_every 1 --kv_cache_mb 64"
)
LARGEST_GAP = 0.03  # twice Llama's of such a model
GENERATES = """
import json, sys
from pathlib import Path
from vllm import LLM, SamplingParams
from unslothrl.engines import vllm_hybrid, vllm_internals
ids = json.loads(sys.argv[2])
if vllm_internals.is_hybrid(Path(sys.argv[1])):
    vllm_hybrid.register()
engine = LLM(sys.argv[1], dtype="bfloat16", enforce_eager=True, skip_tokenizer_init=True,
             max_model_len=256, kv_cache_memory_bytes=64 << 20, enable_chunked_prefill=False,
             enable_prefix_caching=False)
wanted = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
(found,) = engine.generate([{"prompt_token_ids": ids}], wanted)
print([each[id].logprob for each, id in zip(found.prompt_logprobs[1:], ids[1:])])
"""


@pytest.mark.parametrize("name", families.TRAINED)
def test_a_family_is_trained_resumed_and_exported(tmp_path, monkeypatch, name, own_cache):
    base = families.saved(tmp_path / "base", families.built(families.TRAINED[name]()))
    rows = [{"problem": f"{i} + {i % 7}?", "answer": str(i + i % 7)} for i in range(40)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = [PROGRAM, *JOB, "--model", base]
    python(*job, "--run_name", "whole", "--max_steps", "3", cwd=tmp_path, timeout=500)
    python(*job, "--run_name", "stopped", "--max_steps", "2", cwd=tmp_path, timeout=500)
    python(PROGRAM, "--resume", "stopped", "--max_steps", "3", cwd=tmp_path, timeout=500)
    last = "adapters/v000003/adapter_model.safetensors"
    assert (tmp_path / "whole" / last).read_bytes() == (tmp_path / "stopped" / last).read_bytes()
    tensors = safetensors.torch.load_file(tmp_path / "whole" / last)
    still = [key for key, each in tensors.items() if "lora_B" in key and not each.any()]
    assert tensors and still == []
    gaps = [row["train/sampler_gap"] for row in rows_of(tmp_path / "whole" / "metrics.jsonl")]
    assert max(gaps) < LARGEST_GAP
    exported = tmp_path / "merged"
    export = ["export", "--adapter", "whole", "--output", exported, "--to", "merged"]
    python("-m", "unslothrl", *export, cwd=tmp_path, timeout=500)
    ids = torch.randint(3, 300, (1, 32))
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.bfloat16)
    logprobs = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
    ours = logprobs.gather(-1, ids[0, 1:, None]).flatten()
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # where Qwen3.5 is registered
    said = python("-c", GENERATES, exported, json.dumps(ids[0].tolist()), cwd=tmp_path).stdout
    served = torch.tensor(json.loads(next(line for line in said.splitlines() if line[:1] == "[")))
    assert (served - ours).abs().mean().item() < LARGEST_GAP


@pytest.mark.parametrize("name", families.TRAINED)
def test_packed_is_padded(tmp_path, name, own_cache):
    """To rounding, where a family's layers allow packs; where they do not, all is padded."""
    whole = families.saved(tmp_path / "whole", families.built(families.TRAINED[name]()))
    base, random = base_model.prepare(str(whole)), np.random.default_rng(0)
    options = {"dtype": torch.float32, "rank": 4, "alpha": 4, "dropout": 0.0, "seed": 0}
    prompts = [tuple(map(int, random.integers(3, 300, size))) for size in (7, 19)]
    samples = []
    for prompt, size in zip((*prompts, *prompts), (5, 12, 1, 8), strict=True):
        zero = np.zeros(size, np.float32)
        samples.append(Sample(prompt, random.integers(3, 300, size), zero, zero, 0))
    packed, padded = (peft.load(base, **options, packs=packs) for packs in (True, False))
    assert (packed.pack_inputs is None) == (name in ("Gemma 3", "Gemma 4", "Qwen3.5"))
    with torch.no_grad():
        found = [each.token_logprobs(samples, 1.0)[0] for each in (packed, padded)]
        alone = torch.cat([padded.token_logprobs([sample], 1.0)[0] for sample in samples])
    assert torch.allclose(found[0], alone, atol=1e-4) and torch.allclose(found[1], alone, atol=1e-4)


KEEPS = """
import sys
from pathlib import Path
from vllm import LLM, SamplingParams
from unslothrl.engines import vllm_hybrid, vllm_internals
if vllm_internals.is_hybrid(Path(sys.argv[1])):
    vllm_hybrid.register()
engine = LLM(sys.argv[1], dtype="bfloat16", enforce_eager=True, skip_tokenizer_init=True,
             max_model_len=1024, max_num_batched_tokens=1024, kv_cache_memory_bytes=64 << 20,
             block_size=32, enable_prefix_caching=False).llm_engine
scheduler = engine.engine_core.engine_core.scheduler
pool, config = scheduler.kv_cache_manager.block_pool, scheduler.kv_cache_config
free, most = pool.get_num_free_blocks(), 0
wanted = SamplingParams(max_tokens=448, ignore_eos=True, detokenize=False)
for request in range(4):
    engine.add_request(str(request), {"prompt_token_ids": [5 + request] * 64}, wanted)
while engine.has_unfinished_requests():
    engine.step()
    most = max(most, free - pool.get_num_free_blocks())
print("kept", most * max(each.size for each in config.kv_cache_tensors) // config.num_blocks)
"""
TWICE = {str(layer): {"head_dim": 64} for layer in (3, 7)}  # where a layer sees everything


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        ("Gemma 3", "sliding_attention", {"sliding_window": 128}),
        ("Gemma 4", "sliding_attention", {"sliding_window": 128, "per_layer_config": TWICE}),
        ("Qwen3.5", "linear_attention", {}),
    ],
)
def test_vllm_keeps_of_sequences_what_is_counted(tmp_path, monkeypatch, name, kind, more):
    """4 sequences of 512 tokens; blocks of 32 tokens, which are the smallest on a CPU."""
    config = families.TRAINED[name]().get_text_config().to_dict()
    config |= {"num_hidden_layers": 8, "layer_types": ([kind] * 3 + ["full_attention"]) * 2, **more}
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setattr(decoder, "BLOCK", 32)
    counted = decoder.count(config)
    monkeypatch.setattr(shapes, "by_transformers", lambda _: counted)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(decoder.text_of(config)).to(torch.bfloat16)
    said = python("-c", KEEPS, families.saved(tmp_path, model), cwd=tmp_path).stdout
    (kept,) = [int(line.split()[1]) for line in said.splitlines() if line.startswith("kept ")]
    assert kept == shapes.read(config).kv_bytes(4 * 512, 4)

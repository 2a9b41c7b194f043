"""llama.cpp computes the same logits from our GGUF files as transformers does from the model, and
reads the same tokens: `make llama-test`, which installs it. The figures stand in docs/using.md."""

import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from python_process import python
from test_gguf import MODELS, small_model, write

from unslothrl import embedded
from unslothrl.commands import cli
from unslothrl.export import gguf
from unslothrl.weights import base_model

pytestmark = pytest.mark.slow

PEER = Path(sys.prefix) / "peers" / "llama-cpp"
ASK = Path(__file__).parent / "ask_llama_cpp.py"
IDS = [random.Random(5).randrange(3, 259) for _ in range(200)]
ODD = [
    "", " ", "\n", "a", "  two  spaces ", "tabs\tand\r\nlines\n\n\n", "What is 347 + 285?",
    "1234567 12 3.14", "don't WE'LL it's I'M", "naïve café ÅÄÖ ß", "你好,世界。", "日本語テキスト",
    "مرحبا בעולם", "🙂👩‍👩‍👧‍👦 emoji", "\u200bzero\u00a0width", "x=1;\n    if (y) { return z; }",
    "\x00\x01\x7f",
    "<think>a</think><answer>5</answer>", "<|im_start|>user\nhi<|im_end|>\n", "<thi nk> < answer>",
    "----====!!!???...", "Ünï çödé 𝔘𝔫𝔦 ﬁ", "a" * 300, " leading", "trailing ",
    "e\u0301 \u1e9b\u0323",
]  # fmt: skip


def ask(file: Path, *, texts=(), ids=()) -> dict:
    """What llama.cpp says, in a process that has it on its path."""
    if not PEER.is_dir():
        pytest.skip("llama.cpp is not installed: make llama-test")
    given = json.dumps({"texts": list(texts), "ids": list(ids)})
    environ = {**os.environ, "PYTHONPATH": str(PEER)}
    options = {"encoding": "utf-8", "errors": "replace"}  # of its log
    return json.loads(python(ASK, file, input=given, env=environ, timeout=300, **options).stdout)


def largest_difference(model, file: Path) -> tuple[float, float]:
    """-> (of two logits over `IDS`; how far the logits spread)"""
    import torch

    found = torch.tensor(ask(file, ids=IDS)["logits"])
    with torch.no_grad():
        expected = model.float()(torch.tensor([IDS])).logits[0]
    assert found.shape == expected.shape
    return float((found - expected).abs().max()), float(expected.std())


@pytest.mark.parametrize("kind", MODELS)
def test_logits_of_each_family_agree(tmp_path, kind, record_property):
    for stored, most in (("f16", 0.005), ("q8_0", 0.1)):
        model = small_model(kind)
        write(model, tmp_path / f"{stored}.gguf", stored)
        gguf.round_as_stored(model, stored)
        largest, spread = largest_difference(model, tmp_path / f"{stored}.gguf")
        record_property(stored, largest)
        print(f"{kind} {stored}: largest difference {largest:.2g}, spread {spread:.2g}")
        assert largest < most * spread


def trained(folder: Path) -> Path:
    flags = (
        "train --learner grpo --cluster local --engine transformers --number_of_actors 0 "
        "--max_steps 2 --batch_size 8 --num_candidates 4 --eval_every 0 --lr 3e-3 --run_name run"
    )
    assert cli.main([*flags.split(), "--output_dir", str(folder)]) == 0
    return folder / "run"


def test_the_embedded_run_as_gguf(tmp_path):
    from transformers import AutoModelForCausalLM

    run = trained(tmp_path)
    assert cli.main(["export", "--adapter", str(run), "--output", str(tmp_path / "merged")]) == 0
    tokenizer = base_model.load_tokenizer(embedded.BASE)
    for stored, most in (("f16", 0.005), ("q8_0", 0.1)):
        output = tmp_path / stored
        arguments = ["--adapter", str(run), "--to", "gguf", "--gguf_type", stored]
        assert cli.main(["export", *arguments, "--output", str(output)]) == 0
        (file,) = output.glob("*.gguf")
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        gguf.round_as_stored(model.half(), stored)
        largest, spread = largest_difference(model, file)
        print(f"embedded {stored}: largest difference {largest:.2g}, spread {spread:.2g}")
        assert largest < most * spread
        said = ask(file, texts=ODD)
        assert said["tokens"] == [tokenizer(t, add_special_tokens=False)["input_ids"] for t in ODD]
        assert said["eos"] == tokenizer.eos_token_id


@pytest.mark.parametrize("split", gguf.SPLITS)
def test_tokens_agree_where_there_are_merges(tmp_path, split):
    """Tokenizers trained on this project's texts, which split as each of the known ones does."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    (patterns, by_words), name = split, gguf.SPLITS[split]
    parts = [
        pre_tokenizers.Digits(individual_digits=True)
        if pattern == "digits"
        else pre_tokenizers.Split(Regex(pattern), "isolated")
        for pattern in patterns
    ]
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=by_words))
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    root = Path(__file__).parents[1]
    texts = [path.read_text() for path in (*root.glob("docs/*.md"), *root.glob("tests/*.py"))]
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *ODD * 5], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    model = small_model("qwen2")
    model.resize_token_embeddings(2048)
    read = gguf.read_tokenizer(tmp_path, 2048)
    assert read.pre == name and len(read.merges) > 1000
    gguf.write(model, replace(read, special={"eos": 2}), tmp_path / "x.gguf", "f16", "x")
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in [*ODD, *texts]]
    said = ask(tmp_path / "x.gguf", texts=[*ODD, *texts])["tokens"]
    pairs = zip([*ODD, *texts], expected, said, strict=True)
    assert [text[:80] for text, one, other in pairs if one != other] == []

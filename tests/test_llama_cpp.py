"""llama.cpp computes the same logits from our GGUF files as transformers does from the model, and
reads the same tokens: `make llama-test`, which installs it. The figures stand in docs/using.md."""

import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from python_process import python
from test_gguf import MODELS, small_model, write
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM

from unslothrl.commands import cli
from unslothrl.export import gguf, gguf_tokenizer

pytestmark = pytest.mark.slow

PEER = Path(sys.prefix) / "peers" / "llama-cpp"
MOST = {"f16": 0.005, "q8_0": 0.1}  # difference of two logits, by how far the logits spread
# Gated DeltaNet in half precision is 0.03 from itself, where SmolLM3 is 0.01
LESS_ALIKE = {gguf.RECURRENT: 3, gguf.WINDOWED: 2, gguf.TWO_SIZES: 2}
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


ROOT = Path(__file__).parents[1]
TEXTS = [path.read_text() for path in (*ROOT.glob("docs/*.md"), *ROOT.glob("tests/*.py"))]


def ask(file: Path, *, texts=(), ids=()) -> dict:
    """What llama.cpp says, in a process that has it on its path."""
    if not PEER.is_dir():
        pytest.skip("llama.cpp is not installed: make llama-test")
    given = json.dumps({"texts": list(texts), "ids": list(ids)})
    environ = {**os.environ, "PYTHONPATH": str(PEER)}
    options = {"encoding": "utf-8", "errors": "replace"}  # of its log
    program = Path(__file__).with_name("ask_llama_cpp.py")
    done = python(program, file, input=given, env=environ, timeout=300, **options)
    return json.loads(done.stdout)


def check_logits(model, file: Path, stored: str, times: float = 1) -> None:
    """Over `IDS`, of a model whose weights are rounded as they are stored."""
    gguf.round_as_stored(model, stored)
    found = torch.tensor(ask(file, ids=IDS)["logits"])
    with torch.no_grad():
        expected = model.float()(torch.tensor([IDS])).logits[0]
    assert found.shape == expected.shape
    largest, spread = float((found - expected).abs().max()), float(expected.std())
    print(f"{file} {stored}: largest difference {largest:.2g}, spread {spread:.2g}")
    most = MOST[stored] * LESS_ALIKE.get(model.config.model_type, times)
    assert largest < most * spread


@pytest.mark.parametrize("kind", MODELS)
def test_logits_of_each_family_agree(tmp_path, kind):
    for stored in MOST:
        model, file = small_model(kind), tmp_path / f"{kind}-{stored}.gguf"
        write(model, file, stored)
        check_logits(model, file, stored)


def test_the_embedded_run_as_gguf(tmp_path, tokenizer):
    flags = (
        "train --learner grpo --cluster local --engine transformers --number_of_actors 0 "
        "--max_steps 2 --batch_size 8 --num_candidates 4 --eval_every 0 --lr 3e-3 --run_name run"
    )
    assert cli.main([*flags.split(), "--output_dir", str(tmp_path)]) == 0
    run = tmp_path / "run"
    assert cli.main(["export", "--adapter", str(run), "--output", str(tmp_path / "merged")]) == 0
    for stored in MOST:
        output = tmp_path / stored
        arguments = ["--adapter", str(run), "--to", "gguf", "--gguf_type", stored]
        assert cli.main(["export", *arguments, "--output", str(output)]) == 0
        (file,) = output.glob("*.gguf")
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        check_logits(model.half(), file, stored, times=2)
        said = ask(file, texts=ODD)
        assert said["tokens"] == [tokenizer(t, add_special_tokens=False)["input_ids"] for t in ODD]
        assert said["eos"] == tokenizer.eos_token_id


@pytest.mark.parametrize("split", gguf_tokenizer.SPLITS)
def test_tokens_agree_where_there_are_merges(tmp_path, split):
    """Tokenizers trained on this project's texts, which split as each of the known ones does."""
    (patterns, by_words, ignores), name = split, gguf_tokenizer.SPLITS[split]
    parts = [
        pre_tokenizers.Digits(individual_digits=True)
        if pattern == "digits"
        else pre_tokenizers.Split(Regex(pattern), "isolated")
        for pattern in patterns
    ]
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=by_words))
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignores))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, *ODD * 5], trainer)
    read = check_tokens(tokenizer, "qwen2", tmp_path)
    assert read.pre == name and len(read.merges) > 1000


def test_tokens_of_sentencepiece_agree(tmp_path):
    """Of a tokenizer with Gemma's settings, in the form that transformers gives it."""
    sentencepiece = pytest.importorskip("sentencepiece")
    from transformers.convert_slow_tokenizer import SentencePieceExtractor

    (tmp_path / "texts").write_text("\n".join([*TEXTS, *ODD * 5]).replace("\x00", ""))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "texts"), model_prefix=str(tmp_path / "x"), vocab_size=2000,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        add_dummy_prefix=False, remove_extra_whitespaces=False, split_digits=True,
        allow_whitespace_only_pieces=True, user_defined_symbols=["<start_of_turn>", "\t\t"],
        minloglevel=2,
    )  # fmt: skip
    found = SentencePieceExtractor(str(tmp_path / "x.model")).extract(models.BPE)
    more = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer(models.BPE(found["vocab"], found["merges"], **more))
    tokenizer.normalizer = normalizers.Replace(" ", gguf_tokenizer.SPACE)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<start_of_turn>", "\t\t")])
    read = check_tokens(tokenizer, "gemma3", tmp_path)
    assert len(read.scores) == 2048 and read.types.count(gguf_tokenizer.BYTE) == 256


def test_tokens_of_merges_within_lines_agree(tmp_path):
    """Of a tokenizer with Gemma 4's settings: merges by rank over a line, bytes for the rest."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", gguf_tokenizer.SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("\n+"), "isolated")
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=1900, special_tokens=first, show_progress=False, limit_alphabet=300
    )
    texts = [text.replace("\x00", "") for text in [*TEXTS, *ODD * 5]]
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    of_bytes = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    tokenizer.model = models.BPE(model["vocab"], merges, **of_bytes)
    tokenizer.pre_tokenizer = None
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<|channel>"])
    read = check_tokens(tokenizer, "gemma4", tmp_path, adds_bos=True)
    assert (read.pre, read.scores) == ("gemma4", []) and len(read.merges) > 1000


def check_tokens(
    tokenizer: Tokenizer, kind: str, folder: Path, *, adds_bos: bool = False
) -> gguf_tokenizer.GgufTokenizer:
    """As a model of that kind has it. -> what is read of it"""
    tokenizer.save(str(folder / "tokenizer.json"))
    model, file = small_model(kind), folder / "x.gguf"
    model.resize_token_embeddings(2048)
    read = gguf_tokenizer.read_tokenizer(folder, 2048)
    whole = replace(read, special={"eos": 2, "bos": 1}, adds_bos=adds_bos)
    gguf.write(model, whole, file, "f16", "x")
    said = ask(file, texts=[*ODD, *TEXTS])["tokens"]
    for text, ids in zip([*ODD, *TEXTS], said, strict=True):
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text[:80]
    return read

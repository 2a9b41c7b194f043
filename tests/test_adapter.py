"""What an adapter must be, looked at before a run or a question; what travels in its folder."""

import json
import shutil
import struct

import pytest
from adapters import NOT_A_NUMBER, SETTINGS, packed, tensor_name, tensors, write

from unslothrl import cluster, embedded
from unslothrl.commands import cli
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.weights import adapter_check, adapter_use, base_model

Q0 = tensor_name(0, "q_proj", "A")


def test_a_whole_adapter_is_taken_for_what_it_is(tmp_path):
    found = adapter_check.check(str(write(tmp_path)), embedded.BASE)
    assert (found.rank, found.alpha, found.base) == (4, 8, "embedded")
    assert found == adapter_check.check_settings(str(tmp_path))


def tensors_with(dtype: str, number: bytes) -> bytes:
    """A whole adapter's weights, but for the last number of one tensor."""
    data = b"\0" * (511 * len(number)) + number
    return packed({**tensors(), Q0: (dtype, [4, 128], data)})


# A whole adapter, but that PEFT takes some of its tensors for none of the model's.
RENAMED = {name.replace("mlp.up", "self_attn.up"): each for name, each in tensors().items()}
REFUSED = [  # changed settings, or other weights
    ({"peft_type": "LOHA"}, "it has peft_type 'LOHA'"),
    ({"r": 8}, "is (4, 128), not (8, 128)"),
    ({"r": True}, "r must be whole, from 1 to 512, got True"),
    ({"lora_alpha": float("nan")}, "lora_alpha must be over 0 and at most 65536, got nan"),
    ({"lora_dropout": 1}, "lora_dropout must be from 0 and under 1, got 1"),
    ({"target_modules": "all-linear"}, "got 'all-linear'"),
    ({"target_modules": ["q_proj"]}, "has tensor"),
    ({"use_dora": True}, "it has use_dora True"),
    ({"init_lora_weights": "pissa"}, "it has init_lora_weights 'pissa'"),
    ({"base_model_name_or_path": 3}, "base_model_name_or_path must be text"),
    (b"", "is damaged"),
    (packed({}), "lacks tensor"),
    (packed(tensors())[:-1], "is damaged"),
    (packed(tensors(rank=8)), "is (8, 128), not (4, 128)"),
    (packed({k: v for k, v in tensors().items() if k != Q0}), "lacks tensor"),
    (packed({**tensors(), tensor_name(4, "q_proj", "A"): tensors()[Q0]}), "has tensor"),
    (tensors_with("I16", b"\0\0"), "is torch.int16: save it as"),
    (packed(RENAMED), " tensor "),
    (tensors_with("BF16", NOT_A_NUMBER), f"tensor {Q0} holds nan: "),
    (tensors_with("F32", struct.pack("<f", float("inf"))), f"tensor {Q0} holds inf: "),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_settings_and_weights_that_do_not_fit_are_refused(tmp_path, changed, words):
    if isinstance(changed, dict):
        folder = write(tmp_path, {**SETTINGS, **changed})
    else:
        folder = write(tmp_path, weights=changed)
    with pytest.raises(UserError) as caught:
        adapter_check.check(str(folder), embedded.BASE)
    said = str(caught.value)
    assert said.startswith(f"adapter {folder}: ") and words in said and "\n" not in said


def test_a_run_looks_at_the_weights_before_it_starts_anything(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cluster, "start", lambda *_: pytest.fail("started"))
    bad = packed({**tensors(), Q0: ("BF16", [4, 128], NOT_A_NUMBER * 512)})
    folder = write(tmp_path / "a", weights=bad)
    flags = ["--model", "embedded", "--dataset", "embedded", "--output_dir", str(tmp_path / "r")]
    for words in (["train", *flags], ["ask", "What is 1 + 1?"]):
        assert cli.main([*words, "--adapter", str(folder)]) == 2
        assert f"tensor {Q0} holds nan" in capsys.readouterr().err


USE = adapter_use.Use("embedded", "Answer in verse.", None, 0.6, 0.95, 12)


def answer(folder, capsys) -> tuple[str, str]:
    assert cli.main(["ask", "--adapter", str(folder), "What is 347 + 285?"]) == 0
    return capsys.readouterr()


@pytest.mark.real
def test_an_adapter_answers_the_same_wherever_it_is_copied_to(tmp_path, capsys):
    trained = write(tmp_path / "run" / "v000001")
    (trained / adapter_use.USE_FILE).write_text(adapter_use.to_json(USE))
    there = shutil.copytree(trained, tmp_path / "elsewhere" / "mine")
    base_model.prepare("embedded")  # which says so when it makes a 4-bit copy
    capsys.readouterr()
    out, err = answer(trained, capsys)
    assert answer(there, capsys) == (out, err.replace(str(trained), str(there)))
    assert out.strip() and "assumed" not in err
    (there / adapter_use.USE_FILE).unlink()
    without, err = answer(there, capsys)
    assert without != out  # it was trained under a system prompt
    assert f"adapter {there}: no unslothrl.json in it; assumed: base embedded" in err


@pytest.mark.parametrize(
    ("field", "value"), [("format", 2), ("temperature", "0"), ("chat_template", ["x"])]
)
def test_a_damaged_use_file_is_refused(tmp_path, field, value):
    found = json.loads(adapter_use.to_json(USE))
    (tmp_path / adapter_use.USE_FILE).write_text(json.dumps({**found, field: value}))
    with pytest.raises(UserError, match=field):
        adapter_use.read(tmp_path)


def test_what_a_run_says_of_itself_reads_back(tmp_path, tokenizer):
    config = Config(model="embedded", dataset="embedded", eval_top_p=0.5)
    made = adapter_use.of_run(config, "Be brief.", tokenizer)
    (tmp_path / adapter_use.USE_FILE).write_text(adapter_use.to_json(made))
    assert adapter_use.read(tmp_path) == made
    assert (made.base, made.system_prompt, made.top_p) == ("embedded", "Be brief.", 0.5)
    assert made.chat_template == tokenizer.chat_template

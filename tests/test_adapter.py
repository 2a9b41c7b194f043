"""What an adapter must be, looked at before a run or a question; what travels in its folder."""

import json
import shutil
import struct

import pytest
from adapters import NOT_A_NUMBER, SETTINGS, packed, tensor_name, tensors, write

from unslothrl import embedded
from unslothrl.commands import cli
from unslothrl.errors import UserError
from unslothrl.weights import adapter_check, adapter_use, base_model

Q0 = tensor_name(0, "q_proj", "A")


def refused(folder) -> str:
    with pytest.raises(UserError) as caught:
        adapter_check.check(str(folder), embedded.BASE)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(f"adapter {folder}: ")
    return str(caught.value).removeprefix(f"adapter {folder}: ")


def test_a_whole_adapter_is_taken_for_what_it_is(tmp_path):
    found = adapter_check.check(str(write(tmp_path)), embedded.BASE)
    assert (found.rank, found.alpha, found.base) == (4, 8, "embedded")
    assert found == adapter_check.check_settings(str(tmp_path))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
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
    ],
    ids=str,
)
def test_settings_that_engines_read_differently_are_refused(tmp_path, changed, words):
    assert words in refused(write(tmp_path, {**SETTINGS, **changed}))


def header(length: int, text: bytes = b"{}") -> bytes:
    return struct.pack("<Q", length) + text


def renamed(part: str, other: str) -> dict:
    """A whole adapter, but that PEFT takes some of its tensors for none of the model's."""
    return {name.replace(part, other): tensor for name, tensor in tensors().items()}


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (b"", "is damaged"),
        (header(2), "lacks tensor"),
        (packed(tensors())[:-1], "is damaged"),
        (packed(tensors(rank=8)), "is (8, 128), not (4, 128)"),
        (packed({k: v for k, v in tensors().items() if k != Q0}), "lacks tensor"),
        (packed({**tensors(), tensor_name(4, "q_proj", "A"): tensors()[Q0]}), "has tensor"),
        (packed({**tensors(), Q0: ("I16", [4, 128], b"\0" * 1024)}), "is torch.int16: save it as"),
        (packed(renamed("mlp.up_proj", "self_attn.up_proj")), " tensor "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_weights_that_do_not_fit_are_refused(tmp_path, weights, words):
    assert words in refused(write(tmp_path, weights=weights))


@pytest.mark.parametrize(
    ("dtype", "number", "shown"),
    [
        ("BF16", NOT_A_NUMBER, "nan"),
        ("F32", struct.pack("<f", float("inf")), "inf"),
    ],
    ids=str,
)
def test_one_weight_that_is_not_finite_is_found_with_its_tensor(tmp_path, dtype, number, shown):
    data = b"\0" * (511 * len(number)) + number
    folder = write(tmp_path, weights=packed({**tensors(), Q0: (dtype, [4, 128], data)}))
    assert f"tensor {Q0} holds {shown}: " in refused(folder)


def test_a_run_looks_at_the_weights_before_it_starts_anything(tmp_path, capsys, monkeypatch):
    from unslothrl import cluster

    monkeypatch.setattr(cluster, "start", lambda *_: pytest.fail("started"))
    bad = packed({**tensors(), Q0: ("BF16", [4, 128], NOT_A_NUMBER * 512)})
    folder = write(tmp_path / "a", weights=bad)
    flags = ["--model", "embedded", "--dataset", "embedded", "--cluster", "local"]
    folders = ["--adapter", str(folder), "--output_dir", str(tmp_path / "r")]
    assert cli.main([*flags, *folders]) == 2
    assert f"tensor {Q0} holds nan" in capsys.readouterr().err
    assert cli.main(["ask", "--adapter", str(folder), "What is 1 + 1?"]) == 2
    assert f"tensor {Q0} holds nan" in capsys.readouterr().err


USE = adapter_use.Use("embedded", "Answer in verse.", None, 0.6, 0.95, 12)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder as a run leaves it, and its parent."""
    parent = tmp_path_factory.mktemp("run")
    folder = write(parent / "v000001")
    (folder / adapter_use.USE_FILE).write_text(adapter_use.to_json(USE))
    return folder


def answer(folder, capsys) -> tuple[str, str]:
    assert cli.main(["ask", "--adapter", str(folder), "What is 347 + 285?"]) == 0
    return capsys.readouterr()


@pytest.mark.real
def test_an_adapter_answers_the_same_wherever_it_is_copied_to(trained, tmp_path, capsys):
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
    ("changed", "words"),
    [
        ({"format": 2}, "its format is 2, this version reads 1"),
        ({"temperature": "0"}, "temperature"),
        ({"chat_template": ["x"]}, "chat_template"),
    ],
    ids=str,
)
def test_a_damaged_use_file_is_refused(tmp_path, changed, words):
    found = json.loads(adapter_use.to_json(USE))
    (tmp_path / adapter_use.USE_FILE).write_text(json.dumps({**found, **changed}))
    with pytest.raises(UserError) as caught:
        adapter_use.read(tmp_path)
    assert words in str(caught.value)


@pytest.mark.real
def test_what_a_run_says_of_itself_reads_back(tmp_path):
    from unslothrl.config.options import Config
    from unslothrl.weights.base_model import load_tokenizer

    tokenizer = load_tokenizer(embedded.BASE)
    config = Config(model="embedded", dataset="embedded", eval_top_p=0.5)
    made = adapter_use.of_run(config, "Be brief.", tokenizer)
    (tmp_path / adapter_use.USE_FILE).write_text(adapter_use.to_json(made))
    assert adapter_use.read(tmp_path) == made
    assert (made.base, made.system_prompt, made.top_p) == ("embedded", "Be brief.", 0.5)
    assert made.chat_template == tokenizer.chat_template

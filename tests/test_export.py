"""`unslothrl export`: what is written answers as the adapter over its 4-bit base does."""

import json
import os
import shutil
import subprocess

import pytest
import safetensors.torch
import torch
from adapters import write
from fake_hub import hub
from python_process import unslothrl

from unslothrl.commands import cli
from unslothrl.export import serving
from unslothrl.files import staged
from unslothrl.tracking import card
from unslothrl.tracking.report.history import RunHistory
from unslothrl.weights.adapter import write_adapter


@pytest.fixture(params=["biases", "plain"])
def trained(request, bases, make_backend, tmp_path):
    """-> (a base of Qwen2's or Llama's kind, an adapter over it)"""
    base = bases[request.param]
    return base, write_adapter(make_backend(base).publish(3), tmp_path / "run" / "adapters")


def check_merged(base, adapter):
    from unslothrl.export import merging

    with_adapter, model = merging.merged(base, adapter, torch.float32, torch.device("cpu"))
    prompts = [tuple(range(300, 320)), (5, 6, 7)]
    alike = merging.likeness(with_adapter, model, prompts)
    assert alike.largest < 2e-3 and alike.same_choice == 1
    with with_adapter.disable_adapter():  # so the adapter does make a difference
        assert merging.likeness(with_adapter, model, prompts).largest > 0.1
    return with_adapter


def test_a_merged_model_computes_the_same_in_float32(trained):
    check_merged(*trained)


@pytest.mark.slow
def test_layers_that_the_base_keeps_in_16_bit_are_merged_too(
    sixteen_bit_bases, make_backend, tmp_path
):
    """Unsloth's dynamic checkpoints have some."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    base, kept = tmp_path / "base", ["lm_head", "model.layers.0.mlp"]
    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16, llm_int8_skip_modules=kept,
    )  # fmt: skip
    AutoModelForCausalLM.from_pretrained(
        sixteen_bit_bases["plain"], quantization_config=settings, device_map="cpu",
        dtype=torch.bfloat16,
    ).save_pretrained(base)  # fmt: skip
    adapter = write_adapter(make_backend(base).publish(3), tmp_path / "adapters")
    wrapped = check_merged(base, adapter).get_base_model().model.layers[0].mlp.up_proj
    assert type(wrapped.base_layer) is torch.nn.Linear


def test_the_command_writes_a_model_that_others_load(trained, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, _ = trained
    target = tmp_path / "out" / "merged"
    arguments = ["--adapter", str(tmp_path / "run"), "--model", str(base), "--output", str(target)]
    assert cli.main(["export", *arguments]) == 0
    assert serving.vllm_line(str(target)) in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(target)
    assert model.dtype == torch.bfloat16 and not hasattr(model.config, "quantization_config")
    assert AutoTokenizer.from_pretrained(target).chat_template
    card = (target / "README.md").read_text()
    assert f"`{base.name}`, a local model" in card and str(base.parent) not in card
    assert [path.name for path in target.parent.iterdir()] == ["merged"]  # nothing half-written
    assert cli.main(["export", *arguments]) == 2  # it is there


def test_a_copy_of_the_base_is_not_exported(trained, tmp_path, capsys, monkeypatch):
    """Because the adapter changes nothing, or because a merge has lost it."""
    from peft.tuners.lora.bnb import Linear4bit

    base, adapter = trained
    (tmp_path / "run" / "config.toml").write_text("")
    tensors = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    zero = shutil.copytree(adapter, tmp_path / "zero")
    safetensors.torch.save_file(
        {name: tensor * ("lora_A" in name) for name, tensor in tensors.items()},
        zero / "adapter_model.safetensors",
    )
    arguments = ["--model", str(base), "--output", str(tmp_path / "out")]
    assert cli.main(["export", str(zero), *arguments]) == 1
    assert "copy of the base" in capsys.readouterr().err and not (tmp_path / "out").exists()
    with monkeypatch.context() as patch:
        real = Linear4bit.get_delta_weight
        patch.setattr(Linear4bit, "get_delta_weight", lambda self, name: 0 * real(self, name))
        assert cli.main(["export", str(adapter), *arguments]) == 1
    assert "copy of the base" in capsys.readouterr().err
    assert cli.main(["export", str(adapter), *arguments]) == 0
    (row,) = map(json.loads, (tmp_path / "run" / "checks.jsonl").read_text().splitlines())
    assert row["from_adapter"] < row["from_base"] / 2


def test_an_exported_adapter_has_all_that_it_needs(trained, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, adapter = trained
    target = tmp_path / "adapter"
    arguments = ["--adapter", str(adapter), "--model", str(base), "--output", str(target)]
    assert cli.main(["export", "--to", "adapter", *arguments]) == 0
    settings = json.loads((target / "adapter_config.json").read_text())
    plain = AutoModelForCausalLM.from_pretrained(settings["base_model_name_or_path"])
    assert PeftModel.from_pretrained(plain, target)
    assert AutoTokenizer.from_pretrained(target).chat_template
    wrong = ["--adapter", str(adapter), "--model", "embedded", "--output", str(tmp_path / "no")]
    assert cli.main(["export", *wrong]) == 2 and not (tmp_path / "no").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    flags = (
        "train --learner grpo --cluster local --engine transformers --number_of_actors 0 "
        "--max_steps 1 --batch_size 4 --num_candidates 4 --topk 4 --eval_every 0 "
        "--max_new_tokens 16 --run_name run"
    )
    assert cli.main([*flags.split(), "--output_dir", str(folder)]) == 0
    return folder / "run"


@pytest.mark.real
def test_a_run_as_gguf_with_its_modelfile(run, tmp_path, capsys):
    target = tmp_path / "my model"
    arguments = ["--adapter", str(run), "--to", "gguf", "--gguf_type", "q8_0"]
    assert cli.main(["export", *arguments, "--output", str(target)]) == 0
    said = capsys.readouterr().out
    file = target / "my-model-q8_0.gguf"
    assert {path.name for path in target.iterdir()} == {file.name, "Modelfile", "README.md"}
    assert f"llama-server -m '{file}' --jinja" in said and f"-f '{target}/Modelfile'" in said
    assert f"FROM ./{file.name}\nTEMPLATE " in (target / "Modelfile").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--adapter nowhere --output new", "adapter nowhere"),
        ("--adapter run", "output is not set: set --output FOLDER, or --push user/name"),
        ("--adapter run --output new --gguf_type q8_0", "gguf_type q8_0"),
        ("--adapter half --output new", "adapter half: this run has saved none yet"),
        ("--adapter cut --output new/er", "adapter cut/adapters/v000001: no adapter_model"),
        ("--adapter run --output link", "output link: it exists already"),
        ("--adapter run --output new.gguf", "output new.gguf is to be a folder: set --output new"),
        ("--adapter run --push a/b/c", "push 'a/b/c': give user/name"),
    ],
)
def test_what_is_wrong_with_an_export_is_one_line(tmp_path, capsys, arguments, said, here):
    write(tmp_path / "run" / "adapters" / "v000001")
    write(tmp_path / "cut" / "adapters" / "v000001")
    (tmp_path / "cut" / "adapters" / "v000001" / "adapter_model.safetensors").unlink()
    (tmp_path / "half").mkdir()
    for name in ("half", "run"):
        (tmp_path / name / "config.toml").touch()
    (tmp_path / "link").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["export", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and sorted(tmp_path.rglob("*")) == before


def test_names_in_a_card_are_no_markup(tmp_path):
    name = "<img src=x onerror=alert(1)>[a](javascript:b)|`c`\n# d\x1b[2J"
    rows = [{"step": 0, f"eval/{name}/pass@1": 0.5}, {"step": 1, f"eval/{name}/pass@1": 0.75}]
    run = RunHistory(rows, {"dataset": "https://me:pass-word@host.example/x"})
    lines = card.card(name, None, f"/models/{name}", run).splitlines()
    shown = "&lt;img src=x onerror=alert(1)&gt;\\[a\\](javascript:b)\\|\\`c\\` # d?\\[2J"
    assert f"# {shown}" in lines
    assert f"| {shown} | pass@1 | 0.500 | 0.750 (step 1) | 0.750 |" in lines
    assert "# d" not in lines and not any("pass-word" in line for line in lines)
    (trained,) = [line for line in lines if "weights of" in line]
    assert trained.count("`") == 2  # all of it is code


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "new" / "er" / "out"
    for error in (OSError("9 requested and 8 written"), KeyboardInterrupt()):
        with pytest.raises(type(error)), staged(target) as at:
            (at / "half").write_text("x")
            raise error
        assert list(tmp_path.iterdir()) == []
    with staged(target) as at:
        (at / "whole").write_text("x")
    assert [path.name for path in target.iterdir()] == ["whole"]


@pytest.mark.real
def test_an_adapter_is_pushed_with_its_card(run, tmp_path):
    def push(token: str) -> subprocess.CompletedProcess:
        hub_of_test = {"HF_ENDPOINT": server.address, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0"}
        command = f"export --adapter {run} --to adapter --push me/mine --private"
        environ = os.environ | hub_of_test
        return unslothrl(*command.split(), env=environ, timeout=200, cwd=tmp_path)

    with hub() as server:
        refused = push("hf_wrong")
        assert refused.returncode == 1 and not server.repositories
        (line,) = refused.stderr.splitlines()
        assert "push me/mine: not uploaded (" in line and "log in with" in line
        done = push("hf_right")
        assert done.returncode == 0, done.stderr
        assert f"pushed: {server.address}/me/mine" in done.stdout
        repository = server.repositories["me/mine"]
    assert repository["private"] and list(tmp_path.iterdir()) == []
    assert set(repository["files"]) >= {
        "README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json",
        "unslothrl.json", "base/config.json", "base/model.safetensors",
    }  # fmt: skip
    assert repository["files"]["README.md"].startswith(b"---\nlibrary_name: ")


@pytest.mark.real
def test_the_difference_is_judged_by_the_likeliest_tokens():
    from unslothrl.commands.export import likeness_line
    from unslothrl.export.merging import Likeness

    for alike, words in ((0.985, "98.5% of the positions: rounding"), (0.9, "more than rounding")):
        assert words in likeness_line("x", Likeness(20, 0.391, 0.02, alike))

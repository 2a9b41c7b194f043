"""What was trained over one base is not used over another: a resume, `eval`, `ask`, `chat` and
`export` compare every part of it; an untouched copy is the same base."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from adapters import write
from few_cases import few

from unslothrl import embedded
from unslothrl.commands import cli
from unslothrl.errors import UserError
from unslothrl.offline import tables
from unslothrl.runs import resume
from unslothrl.tracking import origin
from unslothrl.weights import adapter_use, base_model, base_parts

WEIGHTS = "model.safetensors"


def copy_of(folder: Path) -> Path:
    return Path(shutil.copytree(embedded.BASE, folder))


def change_tensor(name: str):
    """-> what inverts the lowest bit of the last number of a tensor."""

    def change(base: Path) -> None:
        tensors = safetensors.torch.load((base / WEIGHTS).read_bytes())
        tensors[name].view(-1).view(torch.uint8)[-2] ^= 1
        safetensors.torch.save_file(tensors, base / WEIGHTS, {"format": "pt"})

    return change


def change_json(name: str, change):
    def changed(base: Path) -> None:
        content = json.loads((base / name).read_text())
        change(content)
        (base / name).write_text(json.dumps(content))

    return changed


def add_token(tokenizer: dict) -> None:
    added = tokenizer["added_tokens"]
    added.append({**added[-1], "id": added[-1]["id"] + 1, "content": "<new>"})


def change_template(base: Path) -> None:
    with (base / "chat_template.jinja").open("a") as file:
        file.write(" ")


def add_template(base: Path) -> None:
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")


def split(base: Path, swapped: bool = False) -> None:
    """Half of the tensors in a second file; `swapped`: that of another base."""
    tensors = safetensors.torch.load((base / WEIGHTS).read_bytes())
    (base / WEIGHTS).unlink()
    names, files = sorted(tensors), {}
    for number, some in enumerate((names[::2], names[1::2]), 1):
        part = {name: tensors[name] for name in some}
        if swapped and number == 2:
            part = {name: tensor.flip(0).contiguous() for name, tensor in part.items()}
        file = f"model-{number:05d}-of-00002.safetensors"
        safetensors.torch.save_file(part, base / file, {"format": "pt"})
        files |= dict.fromkeys(some, file)
    index = {"metadata": {}, "weight_map": files}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))


CHANGES = {  # what -> (the change, the parts that it is called by)
    "a query": (change_tensor("model.layers.1.self_attn.q_proj.weight"), "weights"),
    "an embedding": (change_tensor("model.embed_tokens.weight"), "embeddings"),
    "a norm": (change_tensor("model.layers.2.input_layernorm.weight"), "norms"),
    "the output layer": (change_tensor("lm_head.weight"), "head"),
    "a swapped shard": (lambda base: split(base, swapped=True), "weights, "),
    "an added token": (change_json("tokenizer.json", add_token), "tokenizer"),
    "a special token": (
        change_json("tokenizer_config.json", lambda t: t.update(eos_token="0")), "tokenizer"
    ),
    "a template for tools": (add_template, "chat template"),
    "the template": (change_template, "chat template"),
    "the stop tokens": (
        change_json("generation_config.json", lambda t: t.update(eos_token_id=[7])), "stop tokens"
    ),
    "the rotary embedding": (
        change_json("config.json", lambda t: t.update(rope_theta=5.0)), "config.json"
    ),
}  # fmt: skip


OFTEN = ["a query", "a swapped shard", "an added token", "the template", "the rotary embedding"]


@pytest.mark.parametrize("change", few(CHANGES, among=OFTEN))
def test_a_changed_base_is_refused_by_every_command_in_one_line(
    tmp_path, capsys, change, own_cache
):
    """The base of that name, and another that is given."""
    base, adapter = copy_of(tmp_path / "base"), write(tmp_path / "adapter")
    use = adapter_use.Use(str(base), "", base_parts=base_parts.of(base))
    (adapter / adapter_use.USE_FILE).write_text(adapter_use.to_json(use))
    make, part = CHANGES[change]
    other = copy_of(tmp_path / "other")
    make(base)
    make(other)
    for model, named in (([], base), (["--model", str(other)], other)):
        for words in (
            ["eval", "--dataset", "embedded"],
            ["ask", "question"],
            ["chat"],
            ["export", "--output", str(tmp_path / "out")],
        ):
            capsys.readouterr()
            assert cli.main([words[0], "--adapter", str(adapter), *model, *words[1:]]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert f"model {named} is not the base that adapter {adapter} was trained on" in line
            assert f"by its {part}" in line and line.endswith("set --model to a copy of that")
    assert not (tmp_path / "cache").exists()  # before quantising
    assert not (tmp_path / "out").exists()
    began = SimpleNamespace(model=str(other), resume=str(tmp_path), adapter=None)
    origin.record(tmp_path, base=adapter_use.read(adapter).base_parts)
    with pytest.raises(UserError, match=f"that the run was trained on, by its {part}"):
        resume.base_parts_of(began, [])


def test_only_weights_that_are_loaded_are_compared_and_others_are_refused(tmp_path):
    base, name = copy_of(tmp_path / "base"), "a.safetensors"
    shutil.copyfile(base / WEIGHTS, base / name)
    change_tensor("model.norm.weight")(base)
    assert base_parts.differing(base_parts.of(embedded.BASE), base_parts.of(base)) == "norms"
    with pytest.raises(UserError, match=rf"{name} is no part of it: move it elsewhere"):
        base_model.find(str(base))
    (base / name).rename(base / "consolidated.safetensors")  # as Mistral's have
    assert base_model.find(str(base)) == base
    (base / WEIGHTS).write_bytes(b"short")
    with pytest.raises(UserError, match=r"model.safetensors is damaged"):
        base_parts.of(base)
    write(base)
    with pytest.raises(UserError, match="would apply the adapter in it"):
        base_model.find(str(base))


def test_an_index_without_one_of_its_files_or_beside_whole_weights_is_refused(tmp_path):
    base = copy_of(tmp_path / "base")
    split(base)
    shutil.copyfile(embedded.BASE / WEIGHTS, base / WEIGHTS)
    assert base_parts.of(base) == base_parts.of(embedded.BASE)
    with pytest.raises(UserError, match=r"model\.safetensors is no part of it"):
        base_model.find(str(base))
    (base / WEIGHTS).unlink()
    assert base_model.find(str(base)) == base
    next(base.glob("model-00002*")).unlink()
    with pytest.raises(UserError, match=r"model-00002-of-00002\.safetensors is damaged"):
        base_parts.of(base)


def test_neither_its_folder_nor_its_shards_tell_a_base_from_another(tmp_path):
    base = copy_of(tmp_path / "elsewhere")
    split(base)
    before = base_parts.of(embedded.BASE)
    assert base_parts.of(base) == before and base_parts.differing(before, before) == ""

    settings = json.loads((base / "tokenizer_config.json").read_text())
    settings["chat_template"] = (base / "chat_template.jinja").read_text()
    (base / "tokenizer_config.json").write_text(json.dumps(settings))
    (base / "chat_template.jinja").unlink()  # the same template in its older place
    assert base_parts.of(base) == before


def test_a_copy_of_older_code_is_not_used(tmp_path, monkeypatch):
    """Nor one of other weights; a README.md makes no new one."""
    base = copy_of(tmp_path / "base")
    key = base_model._content_key(base)
    (base / "README.md").write_text("new")
    assert base_model._content_key(base) == key
    changed = tmp_path / "quantise.py"
    changed.write_text(base_model.QUANTISING[0].read_text() + "# changed\n")
    monkeypatch.setattr(base_model, "QUANTISING", [changed])
    older = base_model._content_key(base)
    monkeypatch.undo()
    change_tensor("model.norm.weight")(base)
    assert len({key, older, base_model._content_key(base)}) == 3


@pytest.mark.slow
@pytest.mark.real
def test_a_four_bit_copy_that_has_changed_is_made_again(tmp_path, capsys, own_cache):
    copy = base_model.prepare(str(copy_of(tmp_path / "base")))
    before = base_parts.of(copy)
    capsys.readouterr()
    assert base_model.prepare(str(tmp_path / "base")) == copy
    assert capsys.readouterr().err == ""  # it is used as it is
    change_tensor("model.norm.weight")(copy)
    assert base_parts.of(copy) != before
    assert base_model.prepare(str(tmp_path / "base")) == copy
    assert base_parts.of(copy) == before and "quantising" in capsys.readouterr().err


RL = (
    "train --learner grpo --cluster local --engine transformers --number_of_actors 0 "
    "--batch_size 4 --num_candidates 4 --topk 4 --eval_every 0 --max_new_tokens 24 "
    "--dataset embedded"
)
SFT = "sft --dataset rows.jsonl --batch_size 8 --eval_problems 12"


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("command", [RL, SFT])
def test_a_run_goes_on_with_an_untouched_copy_and_with_no_other_base(
    tmp_path, monkeypatch, capsys, command, own_cache
):
    monkeypatch.chdir(tmp_path)
    pairs = tables.embedded_pairs("train", 0, 80)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    base = copy_of(tmp_path / "base")
    begin = [*command.split(), "--model", "./base", "--max_steps", "1", "--run_name", "x"]
    assert cli.main(begin) == 0
    go_on = [command.split()[0], "--resume", "runs/x", "--max_steps", "2"]
    base.rename(tmp_path / "moved")
    kept = (tmp_path / "runs/x/config.toml").read_bytes()
    change_template(copy_of(tmp_path / "base"))
    capsys.readouterr()
    assert cli.main(go_on) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert f"model {base} is not the base that the run was trained on, by its chat template" in line
    assert (tmp_path / "runs/x/config.toml").read_bytes() == kept
    assert cli.main([*go_on, "--model", "./moved"]) == 0
    use = adapter_use.read(tmp_path / "runs/x/adapters/v000002")
    assert use.base_parts == base_parts.of(embedded.BASE) and use.base == str(tmp_path / "moved")

    again = ["--adapter", "runs/x", "--learner", "grpo", "--model", "./base", "--max_steps", "1"]
    if command == RL:  # another base may be trained on from there, and the run says so
        assert cli.main([*RL.split(), *again, "--run_name", "y"]) == 0
        assert "trained on another base than" in capsys.readouterr().out

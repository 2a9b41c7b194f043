"""Which backend `unslothrl sft`, `dpo` and `rm` train with, and what is said of it."""

import json

import pytest
import torch
from layouts import GB

from unslothrl.backends import packing
from unslothrl.config.toml_files import to_toml
from unslothrl.errors import UserError
from unslothrl.offline import resolve as backend
from unslothrl.offline.resolve import resolve
from unslothrl.system.machine import Gpu, Machine

pytestmark = pytest.mark.real

CARD = Gpu("NVIDIA RTX 4090", 24 * GB, 24 * GB, (8, 9), "GPU-0")
NO_CARD = Machine()
WITHOUT = Machine(gpus=(CARD,))
WITH = Machine(gpus=(CARD,), packages=frozenset({"unsloth"}))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def chosen(machine, command="sft", **flags):
    return backend.with_backend(resolve(command, flags), machine)


def base_of(folder, **config):
    (folder / "base").mkdir()
    (folder / "base" / "config.json").write_text(json.dumps(config))
    (folder / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    return {"model": str(folder / "base"), "dataset": str(folder / "rows.jsonl")}


@pytest.mark.parametrize("command", ["sft", "dpo", "rm"])
def test_auto_is_unsloth_where_it_can_train(command):
    for machine, flags, backend_of in (
        (WITH, {}, "unsloth"),
        (NO_CARD, {}, "peft"),
        (WITH, {"backend": "peft"}, "peft"),
    ):
        stage = chosen(machine, command, **flags)
        assert (stage.options.backend, stage.notes) == (backend_of, ())


OBSTACLES = [  # config.json, flags, words of the line
    ({"model_type": "gemma3"}, {}, ["llama, mistral, qwen2, qwen3", "is gemma3"]),
    ({"model_type": "llama"}, {"dtype": "float32"}, ["16 bits", "leave --dtype float32 out"]),
    ({"model_type": "mistral", "sliding_window": 4096}, {"packing": True}, ["leave --packing out"]),
]


@pytest.mark.parametrize(("config", "flags", "words"), OBSTACLES)
def test_what_unsloth_cannot_train_is_said_with_what_to_do(config, flags, words, here):
    given = {**base_of(here, **config), **flags}
    (note,) = chosen(WITH, **given).notes
    assert chosen(WITH, **given).options.backend == "peft"
    assert note.startswith("backend auto -> peft: ")
    with pytest.raises(UserError) as caught:
        chosen(WITH, **given, backend="unsloth")
    for line in (note, str(caught.value)):
        assert "\n" not in line and [word for word in words if word not in line] == []
    assert str(caught.value).endswith("or set --backend peft")


@pytest.mark.parametrize(
    ("config", "flags"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, {}),
        ({"model_type": "mistral", "sliding_window": None}, {"packing": True}),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False},
         {"packing": True}),
    ],
)  # fmt: skip
def test_what_unsloth_can_train(config, flags, here):
    assert chosen(WITH, **base_of(here, **config), **flags).options.backend == "unsloth"


def test_unsloth_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    stage = chosen(WITHOUT)
    assert stage.options.backend == "peft"
    assert stage.notes[0].startswith("backend auto -> peft: Unsloth is not installed")
    with pytest.raises(UserError, match=r"requirements\.txt; or set --backend peft"):
        chosen(WITHOUT, backend="unsloth")


def test_a_resumed_run_keeps_its_backend(here):
    stage = chosen(WITH, run_name="first")
    folder = here / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(stage.options))
    assert chosen(WITH, resume=str(folder)).options.backend == "unsloth"
    with pytest.raises(UserError, match="backend peft: the run that is resumed has unsloth"):
        chosen(WITH, resume=str(folder), backend="peft")


def test_rows_of_a_pack_by_their_positions():
    positions = torch.tensor([[0, 1, 2, 0, 0, 1]])
    assert packing.row_lengths(positions).tolist() == [3, 1, 2]
    assert packing.row_lengths(torch.arange(4)[None]).tolist() == [4]
    assert packing.row_lengths(positions.expand(2, -1)) is None
    assert packing.row_lengths(None) is None

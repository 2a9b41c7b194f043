"""Which backend `unslothrl sft`, `dpo` and `rm` train with, and what is said of it."""

import json

import pytest
import torch
import trl.trainer.utils as trl_utils
from layouts import GB

from unslothrl.backends import packing
from unslothrl.config.toml_files import to_toml
from unslothrl.errors import UserError
from unslothrl.offline import models
from unslothrl.offline import resolve as backend
from unslothrl.offline.resolve import resolve
from unslothrl.system.machine import Gpu, Machine

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("here")]

CARD = Gpu("NVIDIA RTX 4090", 24 * GB, 24 * GB, (8, 9), "GPU-0")
WITH = Machine(gpus=(CARD,), packages=frozenset({"unsloth"}))


def chosen(machine, command="sft", **flags):
    return backend.with_backend(resolve(command, flags), machine)


@pytest.mark.parametrize("command", ["sft", "dpo", "rm"])
def test_auto_is_unsloth_where_it_can_train(command):
    assert chosen(WITH, command).options.backend == "unsloth"
    assert chosen(Machine(), command).options.backend == "peft"
    stage = chosen(WITH, command, backend="peft")
    assert (stage.options.backend, stage.notes) == ("peft", ())


@pytest.mark.parametrize(("has_gpu", "is_replaced"), [(False, True), (True, False)])
def test_trls_kernel_is_replaced_where_triton_has_no_gpu(has_gpu, is_replaced, monkeypatch):
    """PyPI's torch brings Triton to every machine with Linux."""
    kernel = object()
    monkeypatch.setattr(trl_utils, "_ChunkedLogProbFunction", kernel)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    models.install_plain_head()
    assert (trl_utils._ChunkedLogProbFunction is not kernel) is is_replaced


MISTRAL = {"model_type": "mistral", "sliding_window": 4096}
QWEN = {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}


@pytest.mark.parametrize(
    ("config", "flags", "obstacle"),
    [
        ({"model_type": "gemma3"}, {}, "is gemma3"),
        ({"model_type": "llama"}, {"dtype": "float32"}, "leave --dtype float32 out"),
        (MISTRAL, {"packing": True}, "leave --packing out"),
        (MISTRAL, {}, None),
        ({**MISTRAL, "sliding_window": None}, {"packing": True}, None),
        (QWEN, {"packing": True}, None),
    ],
)
def test_what_unsloth_cannot_train_is_said_with_what_to_do(config, flags, obstacle, here):
    (here / "base").mkdir()
    (here / "base" / "config.json").write_text(json.dumps(config))
    (here / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    given = {"model": str(here / "base"), "dataset": str(here / "rows.jsonl"), **flags}
    stage = chosen(WITH, **given)
    assert stage.options.backend == ("peft" if obstacle else "unsloth")
    if obstacle:
        assert obstacle in stage.notes[0]
        with pytest.raises(UserError, match=f"{obstacle}.*or set --backend peft$"):
            chosen(WITH, **given, backend="unsloth")


def test_unsloth_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    stage = chosen(Machine(gpus=(CARD,)))
    assert stage.options.backend == "peft" and "Unsloth is not installed" in stage.notes[0]
    with pytest.raises(UserError, match="unslothrl setup; or set --backend peft"):
        chosen(Machine(gpus=(CARD,)), backend="unsloth")


def test_a_resumed_run_keeps_its_backend(here):
    folder = here / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(chosen(WITH, run_name="first").options))
    assert chosen(WITH, resume=str(folder)).options.backend == "unsloth"
    with pytest.raises(UserError, match="backend peft: the run that is resumed has unsloth"):
        chosen(WITH, resume=str(folder), backend="peft")


def test_rows_of_a_pack_by_their_positions():
    positions = torch.tensor([[0, 1, 2, 0, 0, 1]])
    assert packing.row_lengths(positions).tolist() == [3, 1, 2]
    assert packing.row_lengths(torch.arange(4)[None]).tolist() == [4]
    assert packing.row_lengths(positions.expand(2, -1)) is None
    assert packing.row_lengths(None) is None

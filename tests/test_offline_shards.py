"""SFT and DPO of a base that several processes share: what one process trains, and a resume."""

import pytest
import safetensors.torch
from environment_files import rows_in
from few_cases import few
from runs_compared import rows
from test_offline_gradients import ROWS

from unslothrl.errors import UserError
from unslothrl.offline.resolve import resolve
from unslothrl.offline.run import run
from unslothrl.system.machine import Machine

pytestmark = pytest.mark.real

LARGEST = 1e-6  # of a weight's difference after steps of 2e-4 times what Adam makes of a gradient
MORE = [{**row, "prompt": f"{number} {row['prompt']}"} for number in range(3) for row in ROWS]


def trained(command, folder, name, **flags):
    """-> the run's folder: three steps, of which one has fewer micro-batches."""
    data = rows_in(folder, MORE[:10])
    given = {
        "model": "embedded", "dataset": data, "eval_dataset": (data,),
        "output_dir": str(folder / "runs"), "run_name": name, "max_steps": "3", "episodes": "2",
        "batch_size": "6", "train_batch_size": "2", "dtype": "float32", "eval_every": "2",
        "max_lora_rank": "8", "checkpoint_every": "1", "lr_schedule": "constant", **flags,
    }  # fmt: skip
    assert run(resolve(command, given)) == 0
    return folder / "runs" / name


def adapter(folder):
    return safetensors.torch.load_file(
        folder / "adapters" / "v000003" / "adapter_model.safetensors"
    )


def check_same(found, whole):
    for ours, theirs in zip(
        *(rows(each / "metrics.jsonl") for each in (found, whole)), strict=True
    ):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            if not name.startswith(("timing/", "memory/")):
                assert ours[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    for name, tensor in adapter(whole).items():
        assert (adapter(found)[name].float() - tensor.float()).abs().max() <= 1e-4, name


@pytest.mark.parametrize(
    ("command", "shards", "packing"),
    few([("sft", 2, False), ("dpo", 2, False), ("sft", 3, True), ("sft", 4, False)], 0),
)
def test_processes_that_share_a_base_train_what_one_does(command, shards, packing, tmp_path):
    flags = {"packing": packing, "max_length": "64"} if command == "sft" else {}
    flags |= {"loss_type": "sigmoid"} if command == "dpo" else {}
    whole = trained(command, tmp_path, "whole", **flags)
    shared = trained(command, tmp_path, "shared", learner_shards=str(shards), **flags)
    check_same(shared, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "before", "after", "flags"),
    [
        ("sft", 2, 3, {}),
        ("dpo", 1, 2, {}),
        ("dpo", 1, 2, {"reference": "adapter"}),
    ],
)
def test_a_run_is_continued_by_more(command, before, after, flags, tmp_path):
    whole = trained(command, tmp_path, "whole", **flags)
    shards = {"learner_shards": str(before)} if before > 1 else {}
    begun = trained(command, tmp_path, "begun", max_steps="2", **flags, **shards)
    resumed = {"resume": str(begun), "learner_shards": str(after), "max_steps": "3"}
    assert run(resolve(command, resumed)) == 0
    check_same(begun, whole)


def test_what_cannot_share_a_base_is_refused():
    with pytest.raises(UserError, match="learner_shards"):
        resolve("rm", {"learner_shards": "2"}, Machine(cpus=2))
    with pytest.raises(UserError, match="reference cached is not possible with learner_shards"):
        resolve("dpo", {"learner_shards": "2", "reference": "cached"}, Machine(cpus=2))

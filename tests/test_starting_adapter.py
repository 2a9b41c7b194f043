"""A run keeps the adapter that it began with: it goes on without the folder that was given."""

import json
import shutil
from pathlib import Path

import pytest
from runs_compared import differences
from test_mirrored_runs import flags

from unslothrl.commands import cli
from unslothrl.config.offline_options import DpoOptions
from unslothrl.embedded import TURNS
from unslothrl.errors import UserError
from unslothrl.offline import tables
from unslothrl.weights import adapter_use, starting_adapter
from unslothrl.weights.adapter import CONFIG_FILE, WEIGHTS_FILE

pytestmark = pytest.mark.real


def start(folder: Path, system_prompt: str = "") -> Path:
    """An adapter of somebody's."""
    shutil.copytree(TURNS, folder)
    (folder / adapter_use.USE_FILE).write_text(
        adapter_use.to_json(adapter_use.Use("embedded", system_prompt, stages=("SFT on x",)))
    )
    return folder


def test_the_copy_is_read_where_the_run_goes_on(tmp_path):
    given, run = start(tmp_path / "given"), tmp_path / "runs" / "one"
    (given / "optimizer.pt").write_bytes(b"of somebody's")
    run.mkdir(parents=True)
    new = DpoOptions(adapter=str(given))
    starting_adapter.keep(new, run)
    assert {path.name for path in run.iterdir()} == {starting_adapter.START}
    kept = run / starting_adapter.START
    assert {path.name for path in kept.iterdir()} == {
        CONFIG_FILE, WEIGHTS_FILE, adapter_use.USE_FILE
    }  # fmt: skip
    assert (kept / WEIGHTS_FILE).read_bytes() == (given / WEIGHTS_FILE).read_bytes()
    shutil.rmtree(given)
    going_on = DpoOptions(adapter=str(given), resume=str(run))
    assert starting_adapter.folder(new) == str(given)
    assert starting_adapter.folder(going_on) == str(kept)
    assert starting_adapter.stages(going_on, "DPO") == ("SFT on x", "DPO")
    (kept / adapter_use.USE_FILE).unlink()
    assert starting_adapter.stages(going_on, "DPO") == ("adapter given", "DPO")  # not "start"
    (kept / adapter_use.USE_FILE).write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        starting_adapter.stages(going_on, "DPO")
    shutil.rmtree(kept)
    assert starting_adapter.folder(going_on) == str(given)
    starting_adapter.keep(DpoOptions(), run)
    assert not list(run.iterdir()) and starting_adapter.folder(DpoOptions(resume="x")) is None


@pytest.mark.slow
def test_rl_goes_on_from_a_mirror_without_the_adapter_that_was_given(tmp_path, here):
    """Its reference is the adapter that it began with, and so is the system prompt."""
    given = start(tmp_path / "sft")
    more = {"objective.kl": "loss", "objective.kl_coefficient": 0.1, "adapter": given}
    more |= {"run_name": "one", "eval_every": 0}
    assert cli.main(["train", *flags(tmp_path / "whole", **{**more, "max_steps": 3})]) == 0
    mirrored = {**more, "mirror": tmp_path / "mirror", "max_steps": 1}
    assert cli.main(["train", *flags(tmp_path / "first", **mirrored)]) == 0
    shutil.rmtree(tmp_path / "first")
    shutil.rmtree(given)
    second = tmp_path / "second"
    again = ["--resume", "mirror/one", "--output_dir", str(second), "--max_steps", "3"]
    assert cli.main(again) == 0
    assert differences(second / "one", tmp_path / "whole" / "one") == []
    swapped = second / "one" / "start" / adapter_use.USE_FILE
    swapped.write_text(adapter_use.to_json(adapter_use.Use("embedded", "Be rude.")))
    assert cli.main(["--resume", str(second / "one"), "--max_steps", "4"]) == 2
    use = adapter_use.read(second / "one" / "adapters" / "v000003")
    assert use is not None and use.stages[0] == "SFT on x" and len(use.stages) == 2


def tree(folder: Path) -> set[Path]:
    """What a mirror has of a run."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    return {path for path in paths if not any(part.startswith(".") for part in path.parts)}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["dpo --reference adapter", "dpo --reference cached", "rm"])
def test_a_stage_goes_on_from_a_mirror_without_the_adapter_that_was_given(
    command, tmp_path, capsys, here
):
    pairs = tables.embedded_pairs("train", 0, 60)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    given = start(tmp_path / "sft", "Be brief.")
    small = "--dataset rows.jsonl --model embedded --batch_size 8 --lr_schedule constant"
    words = f"{command} {small} --checkpoint_every 1 --adapter sft --run_name one".split()
    assert cli.main([*words, "--max_steps", "3", "--output_dir", "whole"]) == 0
    mirrored = ["--mirror", "mirror", "--output_dir", "first"]
    assert cli.main([*words, "--max_steps", "1", *mirrored]) == 0
    shutil.rmtree("first")
    shutil.rmtree(given)
    kind = words[0]
    again = [kind, "--resume", "mirror/one", "--output_dir", "second", "--max_steps", "3"]
    assert cli.main(again) == 0
    assert tree(Path("second/one")) == tree(Path("mirror/one"))
    found, whole = Path("second/one/adapters/v000003"), Path("whole/one/adapters/v000003")
    assert (found / WEIGHTS_FILE).read_bytes() == (whole / WEIGHTS_FILE).read_bytes()
    use = adapter_use.read(found)
    assert use is not None and use.system_prompt == "Be brief." and use.stages[0] == "SFT on x"
    said = capsys.readouterr().out
    assert "behind" not in said and "UserWarning" not in said
    swapped = Path("second/one/start") / WEIGHTS_FILE
    swapped.write_bytes(swapped.read_bytes()[:-1] + b"\0")
    assert cli.main([kind, "--resume", "second/one", "--max_steps", "4"]) == 2
    assert "is not the adapter that the run began with: copy that" in capsys.readouterr().err

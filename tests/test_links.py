"""Links in folders that somebody else may have made: data sets, adapters, models."""

import shutil

import pytest
from adapters import write

from unslothrl.data import sources
from unslothrl.embedded import BASE
from unslothrl.errors import UserError
from unslothrl.files import leads_out
from unslothrl.weights import adapter_check, base_model

ROW = '{"problem": "1+1", "answer": "2"}\n'


def test_what_leads_out_of_a_folder(tmp_path):
    folder = tmp_path / "hub" / "snapshots" / "0a1b"
    folder.mkdir(parents=True)
    (tmp_path / "hub" / "blobs").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "hub" / "blobs" / "ff").write_text(ROW)
    (folder / "own").write_text(ROW)
    outside = (tmp_path / "secret", "../../../secret", "../../blobs-not", "/nowhere")
    for target in ("own", "../../blobs/ff", *outside):  # the second as the hub's cache has it
        (folder / "link").symlink_to(target)
        assert leads_out(folder / "link", folder) is (target in outside), target
        (folder / "link").unlink()
    (folder / "within").symlink_to("own")
    assert not leads_out(folder / "own", folder)
    (tmp_path / "named").symlink_to(folder)  # the user's own name for it
    assert not leads_out(tmp_path / "named" / "within", tmp_path / "named")


def test_a_link_in_a_folder_of_data_is_refused_by_its_name(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_text(ROW * 2)
    (tmp_path / "mine.jsonl").write_text(ROW)
    (folder / "more.jsonl").symlink_to(tmp_path / "mine.jsonl")
    with pytest.raises(UserError, match=r"more\.jsonl is a link that leads out"):
        sources.load_splits(sources.parse(str(folder)))
    (folder / "more.jsonl").unlink()
    (folder / "more.jsonl").symlink_to("train.jsonl")
    assert len(sources.load_splits(sources.parse(str(folder)))["train"]) == 2


def test_a_link_in_an_adapter_is_refused_by_its_name(tmp_path):
    folder = write(tmp_path / "adapter")
    adapter_check.check_settings(str(folder))
    (tmp_path / "mine.json").write_text("{}")
    (folder / "tokenizer.json").symlink_to(tmp_path / "mine.json")
    with pytest.raises(UserError, match=r"tokenizer\.json is a link that leads out of the folder"):
        adapter_check.check_settings(str(folder))


def test_a_file_that_would_be_copied_from_a_model_is_no_link(tmp_path):
    """Into adapters and exports, which are published; weights on another disk stay possible."""
    folder = tmp_path / "model"
    shutil.copytree(BASE, folder)
    weights = next(folder.glob("*.safetensors"))
    shutil.move(weights, tmp_path / "weights")
    weights.symlink_to(tmp_path / "weights")
    assert base_model.find(str(folder)) == folder.resolve()
    (tmp_path / "mine").write_text("mine")
    (folder / "tokenizer_notes.txt").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match=r"tokenizer_notes\.txt is a link that leads out"):
        base_model.find(str(folder))

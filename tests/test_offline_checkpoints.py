"""The checkpoints of a stage: whole or not used, and which are kept."""

import json
from pathlib import Path

import pytest

from unslothrl.checkpoints.store import Damaged, check
from unslothrl.offline.run import StageCheckpoints


def write(checkpoints: StageCheckpoints, step: int, state: str | None = None) -> Path:
    written = checkpoints.writing / f"checkpoint-{step}"
    for name, content in (("adapter_model.safetensors", b"weights"), ("deep/er.json", b"more")):
        (written / name).parent.mkdir(parents=True, exist_ok=True)
        (written / name).write_bytes(content)
    (written / "trainer_state.json").write_text(state or json.dumps({"global_step": step}))
    return checkpoints.seal(written, step, False)


@pytest.fixture
def checkpoints(tmp_path):
    return StageCheckpoints(tmp_path, keep=2)


def test_a_checkpoint_is_summed_and_a_flipped_bit_or_a_missing_file_is_seen(checkpoints):
    earlier, folder = write(checkpoints, 1), write(checkpoints, 2)
    assert checkpoints.newest(pytest.fail).folder == folder
    assert not list(checkpoints.writing.iterdir())
    path, notes = folder / "deep/er.json", []
    for damage in (lambda: path.write_bytes(b"mora"), path.unlink):
        damage()
        assert checkpoints.newest(notes.append).folder == earlier
        assert "step_000002 is damaged" in notes[-1] and path.name in notes[-1]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd"])
def test_no_file_outside_of_the_checkpoint_is_read(checkpoints, name):
    folder = write(checkpoints, 1)
    sums = folder / "SHA256SUMS"
    sums.write_text(sums.read_text() + f"{'0' * 64}  {name}\n")
    with pytest.raises(Damaged, match=f"SHA256SUMS lists {name}"):
        check(folder)
    assert checkpoints.newest(lambda line: None) is None


@pytest.mark.parametrize("state", ["[]", "{", '{"global_step": 4}'])
def test_a_state_that_is_none_or_of_another_step_is_damage_even_with_its_sum(checkpoints, state):
    check(write(checkpoints, 5, state))
    notes = []
    assert checkpoints.newest(notes.append) is None and "trainer_state.json" in notes[0]


def test_what_is_later_is_deleted(checkpoints):
    for step in (1, 2):
        write(checkpoints, step)
    (checkpoints.writing / "checkpoint-3").mkdir()
    checkpoints.delete_after(1)
    assert checkpoints.steps() == [1] and not checkpoints.writing.exists()

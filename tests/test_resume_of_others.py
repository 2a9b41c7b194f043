"""`--resume auto` in a folder that several users write to."""

import os

import pytest

from unslothrl.config.values import RUN
from unslothrl.runs import resume
from unslothrl.tracking import origin
from unslothrl.tracking.origin import Origin


def run_in(parent, name: str, started: str):
    folder = parent / name
    folder.mkdir()
    (folder / "config.toml").write_text("lr = 1e-5\n")
    origin.write(folder, Origin("unslothrl", started, recipe={"lr": 1e-5}))
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("flags", [{"lr": 1e-5}, {"lr": 1e-5, "run_name": "newer"}])
def test_a_run_of_another_user_is_named_and_not_continued(tmp_path, flags):
    tmp_path.chmod(0o1777)
    own = run_in(tmp_path, "own", "2026-11-22 10:00")
    newer = run_in(tmp_path, "newer", "2026-11-22 11:00")
    for path in (newer, newer / "config.toml"):
        os.chown(path, 1001, 1002)
    notes: list[str] = []
    assert resume.newest(RUN, flags, str(tmp_path), notes) == (None if "run_name" in flags else own)
    assert notes == [
        f"resume auto: {newer} is another user's, whose options may name code: to continue it, "
        f"set --resume {newer}"
    ]
    tmp_path.chmod(0o755)  # nobody else can have put it there
    assert resume.newest(RUN, flags, str(tmp_path), notes) == newer and len(notes) == 1
    tmp_path.chmod(0o1777)
    for path in (newer, newer / "config.toml"):
        os.chown(path, 0, 0)
    assert resume.newest(RUN, flags, str(tmp_path), notes) == newer and len(notes) == 1

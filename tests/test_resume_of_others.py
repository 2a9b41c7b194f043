"""`--resume auto` in a folder that several users write to."""

import os
import stat

import pytest

from unslothrl.config.values import RUN
from unslothrl.runs import resume
from unslothrl.tracking import origin
from unslothrl.tracking.origin import Origin

ME, OTHER, GROUP = 1000, 1001, 1002


def parent_of(mode: int, owner: int) -> os.stat_result:
    return os.stat_result((stat.S_IFDIR | mode, 0, 0, 1, owner, GROUP, 0, 0, 0, 0))


def run_in(parent, name: str, started: str):
    folder = parent / name
    folder.mkdir()
    (folder / "config.toml").write_text("lr = 1e-5\n")
    origin.write(folder, Origin("unslothrl", started, recipe={"lr": 1e-5}))
    return folder


@pytest.mark.parametrize(
    ("mode", "owner", "is_another"),
    [
        (0o755, ME, False),  # nobody else can have put it there
        (0o1777, 0, True),  # as /tmp
        (0o2775, ME, True),
        (0o1777, OTHER, False),  # who could have written all of it
    ],
)
def test_who_may_have_put_a_run_there(mode, owner, is_another, tmp_path, monkeypatch):
    folder = run_in(tmp_path, "run", "2026-11-22 10:00")
    real = os.stat

    def stat_as_other(path, **how):
        found = list(real(path, **how))
        found[stat.ST_UID] = OTHER
        return os.stat_result(found)

    parent = parent_of(mode, owner)
    monkeypatch.setattr(os, "stat", stat_as_other)
    assert resume.is_of_another(folder, parent, ME) is is_another
    assert resume.is_of_another(folder, parent, OTHER) is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("flags", [{"lr": 1e-5}, {"lr": 1e-5, "run_name": "newer"}])
def test_a_run_of_another_user_is_named_and_not_continued(tmp_path, flags):
    tmp_path.chmod(0o1777)
    own = run_in(tmp_path, "own", "2026-11-22 10:00")
    newer = run_in(tmp_path, "newer", "2026-11-22 11:00")
    for path in (newer, newer / "config.toml"):
        os.chown(path, OTHER, GROUP)
    notes: list[str] = []
    found = resume.newest(RUN, flags, str(tmp_path), notes)
    assert found == (None if "run_name" in flags else own)
    assert notes == [
        f"resume auto: {newer} is another user's, whose options may name code: to continue it, "
        f"set --resume {newer}"
    ]
    for path in (newer, newer / "config.toml"):
        os.chown(path, 0, 0)
    assert resume.newest(RUN, flags, str(tmp_path), notes) == newer and len(notes) == 1
